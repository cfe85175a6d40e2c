"""Rows of machines, from what EC2 tells and what nodes leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.batch.meter import Machine
from headrace.clusters.node_marks import VARIABLE, NodeMarks, marks_of, note_joined
from headrace.files.layout import LeaseFolder
from headrace.runs.machine_records import MachineEvidence, rows_of
from support.ledger_rows import machine_row


def _machine(machine_id: str = "i-1", **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "machine_id": machine_id,
        "job": "headrace-lease-1",
        "kind": "g4dn.2xlarge",
        "market": "spot",
        "place": "us-east-1a",
        "asked_at": 90.0,
        "started_at": 100.0,
    }
    return Machine(**{**values, **changes})


def _evidence(**changes: Any) -> MachineEvidence:
    values: dict[str, Any] = {
        "lease_id": "lease-1",
        "asked_at": None,
        "now": 1000.0,
        "last_sign": 900.0,
        "lifetime_s": 5000.0,
        "marks": {},
    }
    return MachineEvidence(**{**values, **changes})


_BOOT = NodeMarks(booted_at=110.0, prepared_at=115.0, joined_at=118.5)


def test_a_machine_that_lives_is_entered_with_the_split_of_its_start():
    (row,) = rows_of(_evidence(marks={"i-1": _BOOT}), (), [_machine()])
    assert (row.created_at, row.started_at, row.ended_at) == (90.0, 100.0, None)
    assert (row.booted_at, row.prepared_at, row.joined_at) == (110.0, 115.0, 118.5)
    assert (row.billed_s, row.usd_per_hour) == (900.0, None)
    (of_gang,) = rows_of(_evidence(asked_at=40.0), (), [_machine()])
    assert of_gang.created_at == 40.0


def test_what_is_known_stays_and_what_does_not_change_is_not_written():
    ended = {"ended_at": 500.0, "seen_at": 500.0, "billed_s": 400.0, "usd_per_hour": 0.3}
    row = machine_row(created_at=90.0, started_at=100.0, market="spot", **ended)
    assert rows_of(_evidence(), [row], [_machine(ended_at=500.0)]) == []
    assert rows_of(_evidence(), [row], []) == []
    (again,) = rows_of(_evidence(), [row], [_machine(ended_at=480.0)])
    assert (again.ended_at, again.usd_per_hour) == (480.0, 0.3)


@pytest.mark.parametrize(
    ("marks", "before", "ended_at", "is_estimate"),
    [
        ({}, None, 1000.0, True),  # when it was seen to have ended
        ({}, 700.0, 700.0, True),  # not later each time that it is looked at
        ({"i-1": NodeMarks(ended_at=650.0)}, 700.0, 650.0, False),  # the node told it
    ],
)
def test_the_end_of_a_machine_that_ec2_tells_no_time_of(
    marks: dict[str, NodeMarks], before: float | None, ended_at: float, is_estimate: bool
):
    known = [] if before is None else [machine_row(ended_at=before, is_estimate=True)]
    seen = [_machine(ended_at=1000.0, is_estimate=True)]
    rows = rows_of(_evidence(marks=marks), known, seen)
    assert [(row.ended_at, row.is_estimate) for row in rows] == [(ended_at, is_estimate)]


@pytest.mark.parametrize(
    ("changes", "ended_at", "is_estimate"),
    [
        ({"marks": {"i-1": NodeMarks(ended_at=650.0)}}, 650.0, False),
        ({}, 900.0, True),  # the last sign of the lease
        ({"last_sign": 200.0}, 300.0, True),  # when it was seen itself
        ({"last_sign": 1e6}, 5100.0, True),  # its hard lifetime
    ],
)
def test_a_machine_that_ec2_has_forgotten_ends_at_its_last_sign(
    changes: dict[str, Any], ended_at: float, is_estimate: bool
):
    known = [machine_row(started_at=100.0, seen_at=300.0, usd_per_hour=0.3)]
    (row,) = rows_of(_evidence(**changes), known, [])
    assert (row.ended_at, row.is_estimate) == (ended_at, is_estimate)
    assert (row.billed_s, row.usd_per_hour) == (ended_at - 100.0, 0.3)


def test_a_machine_that_only_its_own_file_tells_of_is_entered():
    marks = _BOOT.model_copy(update={"kind": "g4dn.2xlarge", "market": "spot", "ended_at": 400.0})
    (row,) = rows_of(_evidence(marks={"i-9": marks}), (), [])
    assert (row.machine_id, row.kind, row.market) == ("i-9", "g4dn.2xlarge", "spot")
    assert (row.started_at, row.ended_at, row.billed_s) == (110.0, 400.0, 290.0)
    assert row.is_estimate


def test_nodes_tell_what_they_are_and_a_cut_line_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = LeaseFolder(tmp_path)
    folder.jobs.mkdir()
    first, second = tmp_path / "host.log.i-1.node", folder.jobs / "000001.log.i-2.node"
    first.write_text("kind g5.xlarge\nmarket spot\nplace us-east-1a\nbooted_at 12\nprepared_at 1x")
    second.write_bytes(b"market \xff\xfe\n\nwhat else\nbooted_at \n")
    first.with_suffix(".end").write_text("taken away: spot notice for i-1: terminate")
    second.with_suffix(".end").write_text("0")
    monkeypatch.setenv(VARIABLE, str(first))
    note_joined()
    note_joined()
    found = marks_of(folder)
    assert found["i-1"].kind == "g5.xlarge"
    assert (found["i-1"].booted_at, found["i-1"].prepared_at) == (12.0, None)
    assert first.read_text().count("joined_at") == 1
    assert found["i-2"].booted_at is None
    assert found["i-1"].ended_at is None
    assert found["i-2"].ended_at == second.with_suffix(".end").stat().st_mtime
