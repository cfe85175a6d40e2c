"""No process takes a module from the working folder, nor one of `code` before an installed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.bad_input import Place, make_place
from support.poisoned import Poisoned
from support.training import CODE

pytestmark = pytest.mark.slow

_ARGUMENTS = ["--snapshot", "${oc.env:HEADRACE_HOME}/snapshot.pt"]


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


@pytest.mark.parametrize("keep_warm", [0, 60])
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param({"evaluate": {"split": "val"}}, id="model"),
        pytest.param(_own_data(function={"_target_": "objectives.value", "x": 1}), id="function"),
        pytest.param(_own_data(script=str(CODE / "own_data.py"), args=_ARGUMENTS), id="script"),
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
