"""No process takes a module from the working folder, nor one of `code` before an installed one."""

from __future__ import annotations

import http.client
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.findings import Grade
from headrace.files.layout import RunFolder
from headrace.files.manifest_file import read_manifest
from headrace.recipe.site import Role
from headrace.site_check.site_paths import python_of_nodes
from headrace_bench.contest import BenchOptions
from headrace_bench.pack import bench_pack
from headrace_bench.train import TrainOptions, bench_train
from headrace_pages import tensorboard
from headrace_pages.sample_page import SampleProcess
from headrace_pages.samples import SampleQuestion
from support.bad_input import Place, make_place
from support.poisoned import Poisoned
from support.training import CODE

pytestmark = pytest.mark.slow

_ARGUMENTS = ["--snapshot", "${oc.env:HEADRACE_HOME}/snapshot.pt"]
_FUNCTION = {"_target_": "objectives.value", "x": 1}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Poisoned:
    """The working folder."""
    poisoned = Poisoned(tmp_path / "work")
    monkeypatch.chdir(poisoned.folder)
    return poisoned


@pytest.fixture
def place(tmp_path: Path, no_leftover_processes: None) -> Place:
    return make_place(tmp_path / "home")


def _own_data(**train: Any) -> dict[str, Any]:
    return {"dataset": None, "model": None, "trainer": {}, "train": train}


@pytest.mark.parametrize(
    ("recipe", "keep_warm"),
    [
        pytest.param({"evaluate": {"split": "val"}}, 0, id="model"),
        pytest.param({"evaluate": {"split": "val"}}, 60, id="model, by zygotes"),
        pytest.param(_own_data(function=_FUNCTION), 0, id="function"),
        pytest.param(_own_data(script=str(CODE / "own_data.py"), args=_ARGUMENTS), 0, id="script"),
    ],
)
def test_a_run_imports_nothing_of_the_working_folder(
    place: Place, here: Poisoned, recipe: dict[str, Any], keep_warm: int
) -> None:
    gang = {"kind": "gang", "nodes": 1, "ranks_per_node": 2, "keep_warm": keep_warm}
    place.write_site(roles={"gpu": gang})
    place.write_recipe("blobs", **recipe)
    done = place.run("blobs")
    assert here.imported == set()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_target_in_the_working_folder_is_used_and_nothing_else_of_it(
    place: Place, here: Poisoned
) -> None:
    """Without `code`; modules of Python and of packages come first, whatever lies there."""
    text = (CODE / "blob_models.py").read_text()
    (here.folder / "own_blobs.py").write_text(text)
    model = {"_target_": "own_blobs.BlobModel", "notes": str(place.home)}
    place.write_recipe("blobs", code=[], model=model, evaluate={"split": "val"})
    done = place.run("blobs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert here.imported == set()
    assert f"{here.folder}/signal.py is hidden by " in done.stderr


def test_code_of_the_recipe_replaces_no_module_of_python_or_a_package(
    place: Place, tmp_path: Path
) -> None:
    code = Poisoned(tmp_path / "code")
    shutil.copy(CODE / "blob_models.py", code.folder)
    place.write_site(allowed_code=[str(code.folder)])
    place.write_recipe("blobs", code=[str(code.folder)], evaluate={"split": "val"})
    done = place.run("blobs")
    assert code.imported == set()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{code.folder}/signal.py is hidden by " in done.stderr


def test_the_pages_read_samples_without_the_working_folder(place: Place, here: Poisoned) -> None:
    folder = place.dataset
    fingerprint = read_manifest(folder).fingerprint
    asked = SampleQuestion(folder=str(folder), fingerprint=fingerprint, split="train", index=0)
    process = SampleProcess()
    try:
        assert process.ask(asked).index == 0
    finally:
        process._process.end()
    assert here.imported == set()


def test_tensorboard_does_without_the_working_folder(
    here: Poisoned, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = RunFolder(here.folder).tensorboard / "tensorboard" / "version_0"
    events.mkdir(parents=True)
    (events / "events.out.tfevents.1.host").touch()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        try:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(tensorboard.serve(RunFolder(here.folder))))
            connection.request("GET", "/data/runs")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            for child in tensorboard._started.values():
                child.kill()
                child.wait()
            tensorboard._started.clear()
    assert here.imported == set()


def test_the_check_of_a_site_does_without_the_working_folder(here: Poisoned) -> None:
    found = python_of_nodes(Role(backend="slurm", nodes=1), is_proved=False)
    assert found.grade is not Grade.FAIL, found
    assert here.imported == set()


def test_benchmarks_do_without_the_working_folder(tmp_path: Path, here: Poisoned) -> None:
    options = BenchOptions(folder=tmp_path, sizes=(3072,), rounds=1, total_bytes=2**18)
    (table,) = bench_pack(options, lambda _: None)
    assert table.rows
    options = TrainOptions(ranks=1, batch_size=4, side=8, steps=4, rounds=1, folder=tmp_path)
    bench_train(options, lambda _: None)
    assert here.imported == set()
