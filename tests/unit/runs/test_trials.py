"""The rows of trials follow the journal of their suite, whoever reads it and however often."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.ledger.ledger import open_ledger
from headrace.runs import trials
from headrace.runs.lifecycle import recorded
from headrace.runs.runs import Run
from headrace.runs.trials import note_trials
from headrace.states import FailureClass, StepState
from headrace.suites.records import CommandsApplied
from support.suite_journal import added, ended, failed, journal, make_suite, started


def noted(run: Run) -> dict[int, tuple[str, int, float | None]]:
    note_trials(run.folder)
    rows = open_ledger().trials(run.run_id)
    return {row.number: (row.state.value, row.attempts, row.objective) for row in rows}


def test_rows_follow_the_journal_as_it_grows():
    run = make_suite()
    assert noted(run) == {}
    journal(run.folder, added(1, model__lr=0.1), added(2, model__lr=0.2), started(1))
    assert noted(run) == {1: ("running", 1, None), 2: ("queued", 0, None)}
    assert noted(run) == {1: ("running", 1, None), 2: ("queued", 0, None)}
    journal(run.folder, ended(1, 0.5), started(2, node="node-b"))
    assert noted(run) == {1: ("succeeded", 1, 0.5), 2: ("running", 1, None)}
    row = open_ledger().trial(run.run_id, 1)
    assert (row.name, row.values, row.group) == ("lr0.1", {"model.lr": 0.1}, 1)
    assert (row.started_at, row.finished_at, row.metrics) == (100.0, 160.0, {"val_loss": 0.5})


def test_an_attempt_that_is_not_the_last_has_its_trial_wait_and_its_cause_stay():
    run = make_suite()
    again = failed(1, is_final=False, failure_class=FailureClass.LOST)
    journal(run.folder, added(1), started(1), again)
    assert noted(run) == {1: ("queued", 1, None)}
    assert open_ledger().trial(run.run_id, 1).failure_class is FailureClass.LOST
    journal(run.folder, started(1, 2, at=200.0, node="node-b"), ended(1, 0.5, 2))
    assert noted(run) == {1: ("succeeded", 2, 0.5)}
    row = open_ledger().trial(run.run_id, 1)
    assert (row.node, row.started_at, row.failure_class, row.message) == ("node-b", 100.0, None, "")


def test_a_trial_that_is_retried_waits_again_and_one_cancelled_before_its_first_attempt_has_none():
    run = make_suite()
    cancelled = ended(2, attempt=0, state=StepState.CANCELLED)
    journal(run.folder, added(1), added(2), started(1), failed(1), cancelled)
    assert noted(run) == {1: ("failed", 1, None), 2: ("cancelled", 0, None)}
    journal(run.folder, CommandsApplied(lines=1, retried=(1,)))
    assert noted(run) == {1: ("queued", 1, None), 2: ("cancelled", 0, None)}
    assert open_ledger().trial(run.run_id, 1).finished_at is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_objective_that_is_no_number_is_none(value: float):
    run = make_suite()
    journal(run.folder, added(1), started(1), ended(1, value))
    assert noted(run) == {1: ("succeeded", 1, None)}


def test_a_torn_last_line_waits_and_a_damaged_one_is_left_out(caplog: pytest.LogCaptureFixture):
    run = make_suite()
    whole = added(2).model_dump_json().encode() + b"\n"
    run.folder.journal.write_bytes(b'{"event": "nonsense"}\n' + whole[:20])
    assert noted(run) == {}
    assert "malformed line" in caplog.text
    with run.folder.journal.open("ab") as file:
        file.write(whole[20:])
    assert noted(run) == {2: ("queued", 0, None)}


def test_an_entry_of_a_trial_that_nobody_has_added_is_left_out():
    run = make_suite()
    journal(run.folder, started(7), ended(7, 1.0), added(8))
    assert noted(run) == {8: ("queued", 0, None)}


def test_a_ledger_that_was_lost_is_filled_anew(headrace_home, monkeypatch: pytest.MonkeyPatch):
    run = make_suite()
    journal(run.folder, added(1), started(1), ended(1, 0.5))
    before = noted(run)

    monkeypatch.setenv("HEADRACE_LEDGER", f"sqlite:///{headrace_home}/another.db")
    open_ledger().add_run(recorded(run, 1.0))
    assert noted(run) == before


def test_several_readers_at_once_and_parts_of_any_size_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(trials, "_PART_BYTES", 2000)
    run = make_suite()
    for number in range(1, 31):
        journal(run.folder, added(number), started(number), ended(number, float(number)))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note_trials, [run.folder] * 8))
    expected = {number: ("succeeded", 1, float(number)) for number in range(1, 31)}
    assert noted(run) == expected
    assert open_ledger().journal_read(run.run_id) == os.path.getsize(run.folder.journal)


def test_thousands_of_trials_are_noted_at_once():
    run = make_suite()
    entries = (
        each
        for number in range(1, 2001)
        for each in (added(number, model__lr=number / 7), started(number), ended(number, 1.0))
    )
    journal(run.folder, *entries)
    note_trials(run.folder)
    counts = open_ledger().trials_counted([run.run_id])
    assert counts == {run.run_id: {StepState.SUCCEEDED: 2000}}
