"""Images of a real registry: pulled once per site, used on a real Slurm, refused beforehand."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters.images import pull
from headrace.errors import SiteError
from headrace.execution.execute import execute
from headrace.ledger.ledger import open_ledger
from headrace.recipe.batch import Container
from headrace.runs.provenance import read_provenance
from headrace.states import StepState
from support import container_image, registry
from support.factories import built_in, write_recipe, write_site
from support.ports import find_free_port
from support.runs import make_run
from support.slurm_dev import DevSlurm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(registry.why_not()), reason=registry.why_not()),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry."""
    with registry.registry(tmp_path_factory.mktemp("registry") / "files") as host:
        yield host


@pytest.fixture
def container(tmp_path: Path, headrace_home: Path) -> dict[str, Any]:
    """A container that starts here, of an image file."""
    return container_image.made(tmp_path, "apptainer")


def test_a_training_of_digits_in_an_image_of_a_registry(
    host: str, container: dict[str, Any], tmp_path: Path, headrace_home: Path, digits_folder: Path,
    slurm: DevSlurm, caplog: pytest.LogCaptureFixture, no_leftover_processes: None,
):  # fmt: skip
    """Packed, trained on two nodes and evaluated inside; the image's digest is recorded."""
    registry.push(tmp_path / "image", f"{host}/points:1")
    write_recipe(headrace_home, "small", dataset={"source": str(digits_folder)})
    _site(headrace_home, container | {"image": f"docker://{host}/points:1"})
    with caplog.at_level(logging.WARNING):
        run = make_run(recipe="small", site="contained", overrides=("trainer.max_epochs=1",))
    assert caplog.text.count("is pulled, once") == 1
    assert "Creating SIF file" in caplog.text
    ((file, digest),) = read_provenance(run.folder).images.items()
    assert (Path(file).parent, len(digest)) == (headrace_home / "images", 32)
    assert execute(run, lambda: None) is None
    assert open_ledger().run(run.run_id).state is StepState.SUCCEEDED
    assert [each.name for each in (headrace_home / "images").iterdir()] == [Path(file).name]


def test_callers_at_the_same_time_pull_once(
    host: str, container: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    registry.push(tmp_path / "image", f"{host}/points:1")
    push = ("apptainer", "push", "--no-https", container["image"], f"oras://{host}/sif:1")
    subprocess.run(push, check=True, timeout=60)
    asked = Container(**container | {"image": f"oras://{host}/sif:1"})
    assert Path(pull(asked, tmp_path)).is_file()
    asked = Container(**container | {"image": f"docker://{host}/points:1"})
    with ThreadPoolExecutor(4) as pool:
        (file,) = set(pool.map(lambda _: pull(asked, tmp_path), range(4)))
    assert caplog.text.count("is pulled, once") == 2
    assert Path(file).is_file()


def test_an_image_that_cannot_be_pulled_is_refused_before_there_is_a_run(
    host: str, container: dict[str, Any], headrace_home: Path
):
    gone = f"127.0.0.1:{find_free_port()}"
    for image, why in (
        (f"docker://{host}/nope:1", rf"cannot be pulled: .*{host}.*manifest unknown"),
        (f"oras://{gone}/points:1", rf"cannot be pulled: .*{gone}.*connection refused"),
    ):
        _site(headrace_home, container | {"image": image})
        with pytest.raises(SiteError, match=why) as caught:
            make_run(site="contained")
        assert f"apptainer pull {headrace_home / 'images'}" in caught.value.hint
    assert list((headrace_home / "runs").iterdir()) == []
    assert list((headrace_home / "images").iterdir()) == []


def _site(home: Path, container: dict[str, Any]) -> None:
    roles = built_in("sites", "slurm-dev")["roles"]
    for each in roles.values():
        batch = {key: value for key, value in each["batch"].items() if key != "config"}
        each["batch"] = batch | {"poll": 0.3, "container": container}
    roles["cpu"] |= {"kind": "gang", "nodes": 1}
    roles["gpu"]["ranks_per_node"] = 1
    write_site(home, "contained", like="slurm-dev", roles=roles, folder=str(home),
               allowed_sources=["/"])  # fmt: skip
