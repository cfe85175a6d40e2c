"""Eyes on ranks: who hangs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headrace.processes.children import Child, ChildGroup
from headrace.training.records import NodeLaunch
from headrace.training.watch import Beat, RankWatch


@pytest.fixture
def launch(tmp_path: Path) -> NodeLaunch:
    made = NodeLaunch(
        run_folder=str(tmp_path / "run"), step_folder=str(tmp_path / "step"), dataset="",
        number=1, node_index=0, node_name="node-0", num_nodes=1, ranks_per_node=1,
        host="127.0.0.1", master_address="127.0.0.1", master_port=0, resume=None,
    )  # fmt: skip
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
    monkeypatch.setattr("headrace.training.watch.START_S", 0.0)
    code = ("-c", "import time; time.sleep(600)")
    command = (sys.executable, "-m", "headrace.processes", "--", sys.executable, *code)
    child = Child(name="rank 0", command=command, log=tmp_path / "rank-0.log")
    with ChildGroup([child]) as group:
        watch = RankWatch(launch, group, [child], hang_timeout_s=0.0)
        beat = Beat(launch.folder.beat(0))
        if reports:
            beat.tick()
        assert watch.keep_on() is not reports
