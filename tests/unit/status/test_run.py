"""The list of runs: one query a table, files only of active runs; expected and actual figures."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter
from headrace.recipe.unix_accounts import account
from headrace.runs.prediction import Prediction
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.cost import cost_page
from headrace.status.dataset import datasets_page
from headrace.status.run import RunView, why_failed
from headrace.status.run_list import runs_page
from headrace.status.run_page import run_page
from headrace.steps.mailbox import Progress, StepStatus
from headrace.suites.records import SuiteSummary
from support.factories import prediction
from support.ledger_rows import attempt_row, lease_row, machine_row, run_row
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run, running
from support.suite_journal import make_suite


def only_row(**asked: Any) -> RunView:
    (row,) = runs_page(RunFilter(**asked)).rows
    return row


def test_a_run_under_way_tells_step_progress_metric_and_cost():
    status = StepStatus(
        state=StepState.RUNNING,
        progress=Progress(done=30, total=120, unit="steps"),
        metrics={"loss": 0.5, "val_loss": 0.25},
        elapsed_s=60,
        eta_s=180,
    )
    run = running("train", status)
    machine = machine_row(lease_id=f"{run.run_id}-cpu-1", usd_per_hour=2.0, billed_s=1800.0)
    machine.ended_at = 5.0
    open_ledger().put_machines([machine])
    row = only_row()
    assert (row.step, row.progress, row.kind, row.why) == ("train", 0.25, "train", "")
    assert (row.metric.name, row.metric.value) == ("val_loss", 0.25)
    assert row.cost.usd == pytest.approx(1.0)
    assert row.elapsed_s == pytest.approx(time.time() - row.created_at, abs=5)
    assert (row.eta_s, row.step_eta_s) == (None, 180.0)
    assert row.is_orphan is False


def test_who_asked_is_told_by_the_ledger_once_there_is_a_lease():
    """Of many runs that saves a file each, which lists all packages."""
    run = make_run(user="ada", owner="airflow:headrace_train:manual")
    lease_on_disk(run)
    run.folder.provenance.unlink()
    assert only_row().user == "ada"


def test_an_orphan_a_failed_run_and_one_without_a_lease_say_so():
    orphan = make_run(owner=ended_owner())
    failed = make_run()
    attempt_row_of(failed, "pack", lease_on_disk(failed))
    open_ledger().set_attempt(
        failed.run_id, "pack", 1, state=StepState.FAILED, message="No such folder",
        failure_class=FailureClass.DATA_ERROR,
    )  # fmt: skip
    end_run(failed, StepState.FAILED, "a test")
    refused = make_run()
    lease_id = lease_on_disk(refused)
    open_ledger().set_lease_state(
        lease_id, LeaseState.FAILED, ended_at=1.0, why_ended="No such partition"
    )
    end_run(refused, StepState.FAILED, "a test")
    rows = {row.run_id: row for row in runs_page().rows}
    assert rows[orphan.run_id].is_orphan
    assert rows[failed.run_id].why == "No such folder"
    assert rows[refused.run_id].why == "No such partition"
    assert only_row(state=(StepState.RUNNING, StepState.QUEUED)).run_id == orphan.run_id


def test_a_suite_tells_its_trials_and_best_value():
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    counts = {"succeeded": 4, "pruned": 1, "failed": 2, "running": 1, "queued": 2}
    write_record(run.folder.summary, SuiteSummary(total=12, counts=counts, best=3, best_value=0.25))
    row = only_row()
    assert row.kind == "suite"
    assert (row.trials.total, row.trials.counts) == (12, counts)
    assert (row.metric.name, row.metric.value) == ("val_loss", 0.25)
    end_run(run, StepState.FAILED, "a test")
    counts["queued"] += counts.pop("running")
    assert only_row().trials == row.trials.model_copy(update={"counts": counts})


def test_a_folder_that_is_gone_or_damaged_leaves_the_row():
    run = make_run()
    for damaged in ("[]", "[" * 100_000):
        run.folder.request.write_text(damaged)
        assert only_row().kind == "train"
    run.folder.request.unlink()
    assert only_row().user == account()  # its other files tell more
    gone = make_run(key="gone")
    shutil.rmtree(gone.folder.path)
    assert {row.user for row in runs_page().rows} == {account()}


def test_files_that_cannot_be_read_cost_a_row_its_details_not_the_page():
    """As those of another user's run; a folder is in their place, as root may read all files."""
    bad = running("train", StepStatus(state=StepState.RUNNING))
    status = bad.lease_folder(f"{bad.run_id}-cpu-1").step(1).status
    status.unlink()
    status.mkdir()
    suite = make_suite()
    suite.folder.summary.mkdir()
    rows = {row.run_id: row for row in runs_page().rows}
    assert rows[bad.run_id].damage == "Its files cannot be read: Is a directory"
    assert rows[bad.run_id].step == "train"
    assert rows[suite.run_id].kind == "suite"


def test_values_that_are_no_numbers_are_null_for_a_browser():
    running("train", StepStatus(state=StepState.RUNNING, metrics={"loss": float("nan")}))
    told = json.loads(runs_page().model_dump_json())
    assert told["rows"][0]["metric"] == {"name": "loss", "value": None, "std": None}


def test_the_number_of_queries_does_not_grow_with_the_runs():
    def add(count: int) -> None:
        for _ in range(count):
            run = make_run()
            given = {"dataset": "/data/x", "fingerprint": "f", "reused": True}
            packed = {"state": StepState.SUCCEEDED, "outputs": given}
            attempt_row_of(run, "pack", lease_on_disk(run), **packed)

    def queries(page: Callable[[], object]) -> int:
        asked: list[str] = []

        def note(*details: Any) -> None:
            asked.append(details[2])

        event.listen(Engine, "before_cursor_execute", note)
        try:
            page()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        return len([each for each in asked if each.startswith("SELECT")])

    add(1)
    run_id = runs_page().rows[0].run_id
    assert queries(lambda: run_page(run_id, can_act=True)) <= 10
    assert (queries(runs_page), queries(datasets_page)) == (7, 3)
    add(9)
    assert len(runs_page().rows) == 10
    assert len(datasets_page().rows) == 1
    assert (queries(runs_page), queries(datasets_page)) == (7, 3)


@pytest.mark.parametrize(
    ("state", "last", "is_told"),
    [
        (StepState.FAILED, StepState.FAILED, True),
        (StepState.FAILED, StepState.SUCCEEDED, False),
        (StepState.RUNNING, StepState.FAILED, False),
        (StepState.SUCCEEDED, StepState.LOST, False),
    ],
)
def test_why_a_run_failed(state: StepState, last: StepState, is_told: bool) -> None:
    run = make_run()
    row = attempt_row_of(run, "pack", lease_on_disk(run), state=last)
    record = replace(open_ledger().run(run.run_id), state=state)
    assert why_failed(record, [row]) == (row if is_told else None)


def foretold(folder: Path, **parts: float) -> None:
    write_record(RunFolder(folder).prediction, prediction(parts, half_s=5.0))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """It packed for 100 s and trained, at the second attempt, for 300 s in all, on a dear gang."""
    ledger = open_ledger()
    ended = {"state": StepState.SUCCEEDED, "finished_at": 601.0}
    ledger.add_run(run_row(folder=str(tmp_path), created_at=1.0, **ended))
    for name, role, usd, steps in (
        ("pool", "cpu", 3.6, [("pack", 1, 100.0)]),
        ("first", "gpu", 36.0, [("train", 1, 100.0)]),
        ("second", "gpu", 36.0, [("train", 2, 200.0), ("evaluate", 1, 100.0)]),
    ):
        ledger.add_lease(lease_row(name, key=name, role=role), max_active=9)
        took_s = sum(took for *_, took in steps)
        priced = {"usd_per_hour": usd, "billed_s": took_s, "ended_at": took_s}
        ledger.put_machines([machine_row(f"i-{name}", lease_id=name, **priced)])
        for step, attempt, took in steps:
            times = {"started_at": 10.0, "finished_at": 10.0 + took, "state": StepState.SUCCEEDED}
            ledger.add_attempt(attempt_row(step, attempt, lease_id=name, **times))
    return tmp_path


def test_time_and_money_beside_what_was_expected(run: Path):
    foretold(run, pack=200.0, train=100.0, evaluate=100.0, between=20.0)
    (row,) = cost_page().foretold
    assert (row.run_id, row.finished_at) == ("run-1", 601.0)
    assert (row.expected_s, row.expected_half_s, row.took_s) == (420.0, 5.0, 600.0)
    assert row.usd == pytest.approx(0.1 + 4.0)
    assert row.expected_usd == pytest.approx(0.2 + 2.0)


def test_a_run_without_a_prediction_is_not_there(run: Path):
    assert run.is_dir()
    assert cost_page().foretold == ()


def test_a_run_of_which_nothing_was_known_is_not_there(run: Path):
    write_record(RunFolder(run).prediction, Prediction(unknown=("pack",)))
    assert cost_page().foretold == ()


def test_a_damaged_prediction_leaves_the_page_whole(run: Path):
    RunFolder(run).prediction.write_text("{")
    assert cost_page().foretold == ()
