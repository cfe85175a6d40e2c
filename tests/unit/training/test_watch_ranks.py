"""Eyes on ranks: who hangs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace.processes.children import Child, ChildGroup
from headrace.training.launch_records import NodeLaunch
from headrace.training.rank_failures import verdict
from headrace.training.watch_ranks import Beat, RankWatch, run_watched
from support.training import make_launch


@pytest.fixture
def launch(tmp_path: Path) -> NodeLaunch:
    made = make_launch(tmp_path)
    made.folder.path.mkdir(parents=True)
    return made


def test_a_rank_does_not_hang_because_the_clock_was_set(
    launch: NodeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor because the machine has slept, as a laptop does."""
    Beat(launch.folder.beat(0)).tick()
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    with ChildGroup([child]) as group:
        watch = RankWatch(launch, group, [child], hang_timeout_s=600.0)
        set_to = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: set_to)
        assert watch.keep_on()


@pytest.mark.parametrize("reports", [False, True])
def test_a_script_hangs_only_if_it_has_reported_before(
    launch: NodeLaunch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reports: bool
) -> None:
    monkeypatch.setattr("headrace.training.watch_ranks.START_S", 0.0)
    code = ("-c", "import time; time.sleep(600)")
    command = (sys.executable, "-m", "headrace.processes", "--", sys.executable, *code)
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    with ChildGroup([child]) as group:
        watch = RankWatch(launch, group, [child], hang_timeout_s=0.0)
        beat = Beat(launch.folder.beat(0))
        if reports:
            beat.tick()
        assert watch.keep_on() is not reports


@pytest.mark.parametrize("is_done", [False, True])
def test_a_rank_that_ends_well_before_it_is_done_is_a_user_error(
    launch: NodeLaunch, tmp_path: Path, *, is_done: bool
) -> None:
    """As by a model that calls `os._exit(0)`."""
    if is_done:
        launch.folder.done(0).touch()
    command = (sys.executable, "-c", "import os; os._exit(0)")
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    outcome = run_watched(launch, [child], 600.0)
    error = verdict([outcome])
    if is_done:
        assert error is None
    else:
        assert isinstance(error, UserError)
        assert "ended with exit code 0 in the middle of training" in error.what
        assert "os._exit" in error.hint
