"""Commands in containers, and nodes of a gang in one; Charliecloud runs in tests/integration."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.clusters import worker
from headrace.clusters.containers import python_of, wrap
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.worker import ContainedNode
from headrace.errors import LeaseError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.batch import Container
from support.factories import demo_lease

COMMAND = ("python3", "-m", "x")


@pytest.mark.parametrize(
    ("container", "num_gpus", "expected"),
    [
        ({"runtime": "none"}, 2, "python3 -m x"),
        (
            {"runtime": "apptainer"},
            2,
            "apptainer exec --nv --bind=/shared --bind=/local/me img "
            "env HEADRACE_INSIDE=1 A=1 python3 -m x",
        ),
        (
            {"runtime": "apptainer", "gpus": "amd", "options": ("--cleanenv",), "env": {}},
            1,
            "apptainer exec --rocm --bind=/shared --bind=/local/me --cleanenv img "
            "env HEADRACE_INSIDE=1 python3 -m x",
        ),
        (
            {"runtime": "apptainer", "binds": ("/opt", "/nvme:/local/me")},
            0,
            "apptainer exec --bind=/opt --bind=/nvme:/local/me --bind=/shared img "
            "env HEADRACE_INSIDE=1 A=1 python3 -m x",
        ),
        (
            {"runtime": "charliecloud"},
            2,
            "ch-run --bind=/shared --bind=/local/me img -- env HEADRACE_INSIDE=1 A=1 python3 -m x",
        ),
    ],
)
def test_commands(container: dict[str, Any], num_gpus: int, expected: str):
    """pains 38: the prefix of a container, its GPUs and its binds."""
    asked = Container(**{"image": "img", "env": {"A": "1"}, **container})
    folders = ("/shared", "/local/me", "/dev/shm/me")
    assert " ".join(wrap(asked, COMMAND, folders, num_gpus)) == expected


@pytest.mark.parametrize(
    ("runtime", "image", "message"),
    [
        ("charliecloud", "docker://a/b", "Charliecloud runs folders only"),
        ("apptainer", "docker:/redis:8", "begins with 'docker:/'. Valid: docker://"),
        ("apptainer", "shub://a/b", "Valid: docker://, oras://, library://, or a path"),
    ],
)
def test_an_image_that_cannot_be_pulled_is_refused(runtime: str, image: str, message: str):
    with pytest.raises(ValidationError, match=message):
        Container.model_validate({"runtime": runtime, "image": image})


def test_no_container_changes_nothing():
    assert wrap(None, COMMAND, ("/shared",), 2) == COMMAND
    assert python_of(None, "/venv/bin/python") == "/venv/bin/python"
    assert python_of(Container(runtime="none", image="img"), "/py") == "/py"
    assert python_of(Container(runtime="apptainer", image="img"), "/py") == "python3"


_COUNTING = """
import pathlib, sys
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) == 3:
    (starts.parent / "close").touch()
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    made = SiteFolder(tmp_path).lease("demo-1")
    write_record(made.spec, _spec())
    write_text(made.path / "starts", "")
    return made


def _spec() -> LeaseSpec:
    return demo_lease("demo-1")


@pytest.fixture(autouse=True)
def _python_for_a_container(folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch):
    command = (sys.executable, "-c", _COUNTING, str(folder.path / "starts"))
    monkeypatch.setattr(worker, "in_container", lambda *_: command)


async def _kept(folder: LeaseFolder) -> None:
    node = ContainedNode(folder, _spec(), 0)
    await node.start()
    try:
        await node.keep()
    finally:
        await node.close()


def test_a_container_that_ends_at_once_is_told(folder: LeaseFolder):
    with pytest.raises(LeaseError, match=r"ended at once, with code 7"):
        asyncio.run(_kept(folder))
    assert (folder.path / "starts").read_text() == "x"


def test_one_that_ran_for_a_while_is_started_again_until_the_lease_closes(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "_TOO_SOON_S", 0.0)
    asyncio.run(_kept(folder))
    assert (folder.path / "starts").read_text() == "xxx"


def test_closing_ends_it(folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch):
    waits = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(worker, "in_container", lambda *_: waits)

    async def open_and_close() -> int | None:
        node = ContainedNode(folder, _spec(), 0)
        await node.start()
        process = node._process
        assert process is not None
        await node.close()
        await node.close()  # once more changes nothing
        return process.returncode

    assert asyncio.run(open_and_close()) == -15
