"""`@profile` of line_profiler, in each kind of training."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from line_profiler.line_profiler import load_stats

from headrace.status.traces import traces_of
from headrace.training.function import call_function
from support.training import (
    CODE,
    ThisProcessFleet,
    blob_recipe,
    make_context,
    make_recipe,
    make_site,
    train_here,
)

pytestmark = pytest.mark.slow

SMALL = {"data": {"global_batch_size": 8}, "code": [str(CODE)]}
KINDS = {
    "script": {"train": {"script": str(CODE / "profiled.py"), "ranks_per_node": 2}},
    "function": {"train": {"function": {"_target_": "profiled.value"}}},
    "model": {"trainer": {"max_epochs": 1}, "train": {"ranks_per_node": 2}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_profiles_of_lines_are_in_the_folder_of_the_run(
    kind, dataset: Path, tmp_path: Path, monkeypatch, no_leftover_processes
):
    monkeypatch.setenv("LINE_PROFILE", "1")
    monkeypatch.chdir(tmp_path)
    content = KINDS[kind]
    if kind == "model":
        content = blob_recipe(tmp_path / "notes", {"_target_": "profiled.ProfiledModel"}, **content)
    site = make_site(tmp_path, ranks=2, allowed_code=[str(CODE)])
    context = make_context(tmp_path, make_recipe(SMALL | content), site)
    if kind == "function":
        call_function(context, ThisProcessFleet(), str(dataset))
    else:
        train_here(context, dataset)
    found = [each for each in traces_of(context.run_folder) if each.path.endswith(".lprof")]
    ranks = range(1 if kind == "function" else 2)
    assert [Path(each.path).name for each in found] == [f"lines-of-rank-{n}.lprof" for n in ranks]
    for each in found:
        (function,) = (key for key in load_stats(each.path).timings if key[2] == "work")
        assert function[0].endswith("profiled.py")
    words = shlex.split(found[0].opened_by)
    shown = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=True)
    assert "return sum(range(1000))" in shown.stdout
    assert not list(tmp_path.glob("profile_output*"))
