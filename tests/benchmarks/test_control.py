"""The control side, timed: a small site on paper, asked all that a large one is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import paper_site
from benchmarks.control import control
from headrace.execution.reap import reap
from headrace.files.layout import SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.states import LeaseState, StepState
from headrace.status.lease import leases_page
from support.command_line import headrace


def test_all_is_asked_and_nothing_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_leftover_processes: None,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    in_process = "benchmarks.control._command"  # six starts of Python take most of the time
    monkeypatch.setattr(in_process, lambda words: headrace(*words.split()[1:]))
    control(leases=2, nodes=2, ended=3, trials=10)
    told = json.loads(capsys.readouterr().out)
    assert (told["leases"], told["nodes"], told["ended"], told["trials"]) == (2, 4, 3, 10)
    assert {"page of leases", "a pass of the reaper", "headrace cost"} < set(told["seconds"])
    assert all(took_s > 0 for took_s in told["seconds"].values())
    assert list(tmp_path.iterdir()) == []


def test_leases_on_paper_live_as_long_as_their_heartbeats(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    paper_site.make_site(headrace_home, num_leases=2, nodes=2)
    like = paper_site.asked("train")
    first, second = (paper_site.training(like, number) for number in (1, 2))
    paper_site.enter_ended(like, 3)
    with paper_site.beating(SiteFolder(headrace_home)):
        told = {row.lease_id: row for row in leases_page(can_act=True).rows}
        assert len(told) == 5
        for lease in (first, second):
            row = told[lease.lease_id]
            assert (row.state, row.nodes_here, row.usd_per_hour) == (LeaseState.READY, 2, 2.0)
        assert reap(lambda _run: False, lambda _run, _step: False) == ()
    assert len(open_ledger().runs(states=(StepState.RUNNING,))) == 3
