"""What runs, steps and trials took: their usage, and rows of trials that follow the journal."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.ledger.usage_records import IDLE
from headrace.runs.lifecycle import recorded
from headrace.runs.runs import Run
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.runs.usage_shares import Span, shares
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.mailbox import StepResult, StepStatus
from headrace.suites import records
from headrace.suites.records import Added, CommandsApplied, Ended, Entry, Trial
from support.ledger_rows import USED_AT, attempt_row, lease_row, machine_row, run_row, usage_row
from support.suite_journal import added, ended, failed, journal, make_suite, started

_PRICE = {"usd_per_hour": 3600.0, "price_source": "site file", "price_as_of": "2026-06-17"}
"""A dollar a second."""
_DONE: dict[str, Any] = {"state": StepState.SUCCEEDED}
_LOST: dict[str, Any] = {"state": StepState.LOST, "failure_class": FailureClass.LOST}


@pytest.fixture
def lease(headrace_home: Path, tmp_path: Path) -> LeaseFolder:
    """A gang of two nodes, asked for at 0, there from 100 to 1100, ready at 150."""
    (tmp_path / "run-1").mkdir()
    open_ledger().add_run(run_row(folder=str(tmp_path / "run-1"), state=StepState.SUCCEEDED))
    folder = LeaseFolder(tmp_path / "lease-1")
    row = lease_row(
        folder=str(folder.path), created_at=0.0, state=LeaseState.CLOSED, owner="ann", ended_at=1100
    )
    open_ledger().add_lease(row, max_active=4)
    times = {"created_at": 0.0, "started_at": 100.0, "ended_at": 1100.0, "billed_s": 1000.0}
    open_ledger().put_machines(machine_row(f"node-{n}", **times, **_PRICE) for n in (0, 1))
    return folder


def _attempt(step: str, nth: int, times: tuple[float, float], **changes: Any) -> AttemptRecord:
    begin, end = times
    row = attempt_row(step, nth, created_at=begin - 5, started_at=begin, finished_at=end, **changes)
    return open_ledger().add_attempt(row)


def test_all_money_of_a_run_is_that_of_its_attempts_and_of_idle_machines(lease: LeaseFolder):
    """pains 37: a lost attempt is paid for, the wait in a queue is not."""
    _attempt("stage", 1, (150.0, 200.0), **_DONE)
    _attempt("train", 1, (200.0, 500.0), **_LOST)
    _attempt("train", 2, (520.0, 1000.0), number=7, **_DONE)
    usage = AttemptUsage(gpus=8, staging_s=48, start_s=0, train_s=384, samples=9, gpu_use=0.5)
    result = StepResult(
        state=StepState.SUCCEEDED, started_at=520.0, finished_at=1000.0, usage=usage
    )
    lease.step(7).path.mkdir(parents=True)
    write_record(lease.step(7).result, result)
    note_usage("run-1")
    note_usage("run-1")  # a second look changes nothing
    rows = {(each.kind, each.attempt): each for each in open_ledger().usage("run-1")}
    staged, lost, done = rows["stage", 1], rows["train", 1], rows["train", 2]
    assert (staged.node_s, staged.staging_s) == (100.0, 50.0)
    assert (staged.queue_s, staged.boot_s) == (0.0, 5.0)
    assert (lost.node_s, lost.cause, lost.until) == (600.0, "lost", 500.0)
    assert (done.node_s, done.samples, done.gpu_use) == (960.0, 9, 0.5)
    causes = {each.name: each for each in open_ledger().usage_sums("cause", owner="ann")}
    assert {name: each.usd for name, each in causes.items()} == {
        "succeeded": 1060.0, "lost": 600.0, IDLE: 340.0
    }  # fmt: skip
    (whole,) = open_ledger().usage_sums()
    assert (whole.usd, whole.node_s, whole.attempts, whole.unpriced) == (2000.0, 2000.0, 3, 0)
    assert (whole.staging_s, whole.idle_s, whole.failed_s) == (196.0, 340.0 + 96, 600.0)
    assert whole.gpu_s == 8 * 480.0


def test_the_wait_for_a_machine_is_told_apart_from_its_boot(lease: LeaseFolder):
    open_ledger().add_attempt(attempt_row(created_at=10.0, started_at=160.0, **_DONE))
    note_usage("run-1")
    row = next(each for each in open_ledger().usage("run-1") if each.kind == "train")
    assert (row.queue_s, row.boot_s) == (90.0, 60.0)


def test_an_attempt_that_runs_has_taken_what_it_took_so_far(lease: LeaseFolder):
    open_ledger().add_attempt(attempt_row(number=3, state=StepState.RUNNING))
    lease.step(3).path.mkdir(parents=True)
    status = StepStatus(state=StepState.RUNNING, elapsed_s=300.0, updated_at=500.0)
    write_record(lease.step(3).status, status)
    note_usage("run-1")
    row = next(each for each in open_ledger().usage("run-1") if each.kind == "train")
    assert (row.started_at, row.cause) == (200.0, "running")
    assert row.node_s == 1800.0  # until its machines ended
    assert open_ledger().usage_sums("kind")[0][:4] == ("train", 1, 0, 1800.0)


def test_without_a_price_time_is_counted_and_money_is_null(headrace_home: Path):
    open_ledger().add_run(run_row())
    open_ledger().add_lease(lease_row(), max_active=4)
    _attempt("train", 1, (200.0, 500.0), **_LOST)
    note_usage("run-1")  # nobody counted the machines of an older lease
    (whole,) = open_ledger().usage_sums()
    assert (whole.usd, whole.unpriced, whole.node_s) == (None, 1, 0.0)
    times = {"started_at": 100.0, "ended_at": 600.0, "billed_s": 500.0}
    open_ledger().put_machines([machine_row(**times)])
    note_usage("run-1")
    (whole,) = open_ledger().usage_sums()
    assert (whole.usd, whole.unpriced, whole.node_s, whole.failed_s) == (None, 2, 500.0, 300.0)


def _write_journal(folder: Path, entries: Iterable[Entry]) -> None:
    lines = (each.model_dump_json() for each in entries)
    RunFolder(folder).journal.write_text("".join(f"{line}\n" for line in lines))


def _ended(number: int, times: tuple[float, float], **changes: Any) -> Ended:
    values: dict[str, Any] = {
        "number": number,
        "attempt": 1,
        "state": StepState.SUCCEEDED,
        "is_final": True,
        "lease_id": "lease-1",
        "started_at": times[0],
        "finished_at": times[1],
        "usage": AttemptUsage(node="node-0", gpus=0.5, train_s=times[1] - times[0]),
    }
    return Ended(**{**values, **changes})


def test_a_trial_costs_its_share_of_its_node_over_all_attempts(lease: LeaseFolder):
    """pains 37: and what no trial took is idle time of the suite."""
    times = {"started_at": 100.0, "ended_at": 1100.0, "billed_s": 1000.0}
    at_half = machine_row("node-2#3", **times, usd_per_hour=1800.0, price_source="site file")
    open_ledger().put_machines([at_half])
    _attempt("suite", 1, (150.0, 1050.0), kind="suite", **_DONE)
    failed = {"state": StepState.FAILED, "failure_class": FailureClass.OUT_OF_MEMORY}
    entries = [
        *(Added(trial=Trial(number=n, name=str(n), values={}, group=n)) for n in range(1, 5)),
        _ended(1, (200.0, 300.0), node_share=0.125, is_final=False, **failed),
        _ended(1, (300.0, 700.0), node_share=0.125, attempt=2),
        _ended(2, (200.0, 600.0), usage=AttemptUsage(node="node-2", gpus=4)),
        _ended(3, (0.0, 0.0), attempt=0, state=StepState.CANCELLED),
        _ended(4, (200.0, 300.0), lease_id="none"),
    ]
    _write_journal(lease.path.parent / "run-1", entries[:5])
    note_trials(RunFolder(lease.path.parent / "run-1"))
    assert open_ledger().trial("run-1", 1).usd == 12.5
    _write_journal(lease.path.parent / "run-1", entries)
    note_trials(RunFolder(lease.path.parent / "run-1"))
    assert [row.usd for row in open_ledger().trials("run-1")] == [62.5, 200.0, None, None]
    note_usage("run-1")
    trials = {each.name: each for each in open_ledger().usage_sums("trial", run_id="run-1")}
    assert (trials["1"].attempts, trials["1"].usd, trials["1"].failed_s) == (2, 62.5, 12.5)
    assert (trials["2"].usd, trials["2"].gpu_s) == (200.0, 1600.0)
    kinds = {each.name: each for each in open_ledger().usage_sums("kind", run_id="run-1")}
    assert (kinds["suite"].usd, kinds["suite"].node_s, kinds["trial"].usd) == (0.0, 0.0, 262.5)
    assert kinds[IDLE].usd == pytest.approx(2 * 1000.0 + 500.0 - 262.5)
    causes = {each.name: each.attempts for each in open_ledger().usage_sums("cause")}
    assert causes == {"succeeded": 3, "out_of_memory": 1, IDLE: 0}


def test_trials_pay_for_the_machines_that_they_ran_on(lease: LeaseFolder):
    """pains 37: of types and markets that differ; the wait for a machine in a queue is free."""
    times = {"created_at": 40.0, "started_at": 100.0, "joined_at": 130.0}
    dear = machine_row("i-1", **times, usd_per_hour=7200.0, kind="p5", price_source="price list")
    spot = machine_row("i-2", **times, usd_per_hour=360.0, kind="g5", price_source="spot history")
    open_ledger().put_machines([dear, spot])
    _attempt("suite", 1, (20.0, 1050.0), kind="suite", **_DONE)
    node = AttemptUsage(node="node-0")
    entries = [
        *(Added(trial=Trial(number=n, name=str(n), values={}, group=n)) for n in range(1, 4)),
        _ended(1, (150.0, 250.0), machines=("i-1",), asked_at=50.0, usage=node),
        _ended(2, (150.0, 250.0), machines=("i-2",), asked_at=120.0, usage=node),
        _ended(
            3,
            (300.0, 400.0),
            machines=("i-2", "i-1"),
            asked_at=300.0,
            usage=AttemptUsage(node="node-0", nodes=2),
        ),
    ]
    _write_journal(lease.path.parent / "run-1", entries)
    note_trials(RunFolder(lease.path.parent / "run-1"))
    note_usage("run-1")
    rows = {each.trial: each for each in open_ledger().usage("run-1") if each.trial}
    assert [row.usd for row in open_ledger().trials("run-1")][:2] == [200.0, 10.0]
    assert [rows[number].machine_id for number in (1, 2, 3)] == ["i-1", "i-2", ""]
    assert rows[3].node_s == 200.0  # at the mean price of all of the lease's machines
    waited = {number: (row.queue_s, row.boot_s) for number, row in rows.items()}
    assert waited == {1: (50.0, 30.0), 2: (0.0, 10.0), 3: (0.0, 0.0)}
    (suite,) = [row for row in open_ledger().usage("run-1") if row.kind == "suite"]
    assert suite.queue_s == 5.0  # from then on its trials wait


def test_a_step_that_began_without_a_node_waits_for_it(lease: LeaseFolder):
    _attempt("pack", 1, (10.0, 300.0), kind="pack", **_DONE)
    note_usage("run-1")
    (row,) = [each for each in open_ledger().usage("run-1") if each.kind == "pack"]
    assert (row.queue_s, row.boot_s) == (95.0, 0.0)


def test_an_attempt_takes_all_machines_and_attempts_at_once_share_them():
    machines = [Span(0, 100), Span(50, 200)]
    attempts = [Span(10, 60), Span(40, 60), Span(150, 300)]
    assert shares(machines, attempts) == [30 + 5 + 10, 5 + 10, 50]
    assert shares([], attempts) == [0.0, 0.0, 0.0]


def test_no_part_is_lost_or_counted_twice():
    draw = random.Random(3)

    def spans(count: int) -> list[Span]:
        begins = [draw.uniform(0, 100) for _ in range(count)]
        return [Span(each, each + draw.uniform(0, 50)) for each in begins]

    for _ in range(50):
        machines, attempts = spans(draw.randrange(1, 6)), spans(draw.randrange(1, 5))
        took = sum(shares(machines, attempts))
        (covered,) = shares(machines, [Span(-1, 200)])
        assert covered == pytest.approx(sum(each.end - each.begin for each in machines))
        assert took <= covered + 1e-9
        edges = sorted({at for each in (*machines, *attempts) for at in each})
        wanted = 0.0
        for begin, end in itertools.pairwise(edges):
            middle = (begin + end) / 2
            if any(each.begin < middle < each.end for each in attempts):
                here = sum(each.begin < middle < each.end for each in machines)
                wanted += here * (end - begin)
        assert took == pytest.approx(wanted)


_REPORTED = {"start_s": 10, "staging_s": 20, "train_s": 50, "evaluate_s": 10}
_LATE = {"staging_s": 500, "train_s": 500}
"""Of a clock that was set."""


@pytest.mark.parametrize(
    ("usage", "cause", "seconds"),
    [
        (_REPORTED, "succeeded", (40, 20, 0)),
        (_REPORTED, "running", (40, 20, 0)),
        (_REPORTED, "lost", (0, 0, 200)),
        (_REPORTED, "out_of_memory", (0, 0, 200)),
        ({}, "succeeded", (0, 0, 0)),
        (_LATE, "succeeded", (200, 0, 0)),
    ],
)
@pytest.mark.usefixtures("lease")
def test_an_attempt_is_split_by_where_its_time_went(
    usage: dict[str, float], cause: str, seconds: tuple[int, ...]
):
    row = usage_row(1, node_s=200.0, started_at=USED_AT - 100, cause=cause, **usage)
    open_ledger().put_usage([row])
    (found,) = [each for each in open_ledger().usage_sums("kind") if each.name == "trial"]
    assert (found.staging_s, found.idle_s, found.failed_s) == seconds


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
    monkeypatch.setattr(records, "BLOCK_BYTES", 2000)
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
