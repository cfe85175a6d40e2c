"""The list of runs says the same in a terminal, to programs and on its page."""

from __future__ import annotations

import json
import re

import pytest

from headrace.cli.console import amount
from headrace.errors import UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.run_list import runs_page
from headrace.steps.mailbox import Progress, StepStatus
from headrace.suites.records import SuiteSummary
from support.command_line import headrace
from support.ledger_rows import machine_row
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run
from support.suite_journal import added, ended, journal, make_suite, started

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("headrace_home")]

Told = dict[str, tuple[str, str, str | None]]
"""By run: what a terminal says in the last column, name of the metric, class of the failure."""


def ended_run(state: StepState = StepState.SUCCEEDED, step: str = "train", **changes) -> Run:
    run = make_run(**changes.pop("made", {}))
    attempt_row_of(run, step, lease_on_disk(run))
    open_ledger().set_attempt(run.run_id, step, 1, state=state, **changes)
    end_run(run, state, "a test")
    return run


def running() -> Run:
    run = make_run()
    lease_id = lease_on_disk(run)
    attempt_row_of(run, "train", lease_id, number=1)
    folder = run.lease_folder(lease_id).step(1)
    folder.path.mkdir(parents=True)
    progress = Progress(done=30, total=120, unit="steps")
    metrics = {"loss": 0.5, "val_loss": 0.25}
    status = StepStatus(
        state=StepState.RUNNING, progress=progress, metrics=metrics, elapsed_s=60, eta_s=180
    )
    write_record(folder.status, status)
    rows = [
        machine_row(machine_id="a", lease_id=lease_id, usd_per_hour=2.0, billed_s=1800.0),
        machine_row(machine_id="b", lease_id=lease_id, usd_per_hour=None, market="spot"),
    ]
    for row in rows:
        row.ended_at = 5.0
    open_ledger().put_machines(rows)
    return run


def suite(*, damaged: bool = False) -> Run:
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    counts = {"succeeded": 4, "pruned": 1, "failed": 2, "running": 1, "queued": 2}
    write_record(run.folder.summary, SuiteSummary(total=12, counts=counts, best=3, best_value=0.25))
    if damaged:
        run.folder.summary.write_text("{")
    return run


def cross_validation() -> Run:
    asked = ("trainer.monitor=val_loss", "suite.folds=true", "dataset.folds=3",
             "dataset.splits.train=0.8", "~dataset.splits.val", "data.fold=0")  # fmt: skip
    run = make_suite(overrides=asked)
    for number, value in enumerate((0.5, 0.25, 0.75), 1):
        fold = added(number, group=1, data__fold=number - 1)
        journal(run.folder, fold, started(number), ended(number, value))
    write_record(
        run.folder.summary,
        SuiteSummary(total=3, counts={"succeeded": 3}, best=2, best_value=0.25),
    )
    end_run(run, StepState.SUCCEEDED, "a test")
    return run


def without_a_lease() -> Run:
    run = make_run()
    lease_id = lease_on_disk(run)
    why = "No such partition\nAsk"
    open_ledger().set_lease_state(lease_id, LeaseState.FAILED, ended_at=1.0, why_ended=why)
    end_run(run, StepState.FAILED, "a test")
    return run


@pytest.fixture
def told() -> Told:
    """Runs of every kind and end, with what is to be said of each."""
    outputs = {"metrics": {"loss": 0.5}, "steps": None}
    expected: Told = {
        running().run_id: ("val_loss 0.25", "val_loss", None),
        ended_run(outputs=outputs).run_id: ("loss 0.5", "loss", None),
        ended_run(outputs={"metrics": {}, "steps": None}).run_id: ("", "", None),
        ended_run(step="pack", made={"kind": "pack"}, outputs={}).run_id: ("", "", None),
        suite().run_id: (
            "7 of 12 trials, 2 without success, best 0.25 (#3)", "val_loss", None
        ),
        suite(damaged=True).run_id: ("its suite.json is damaged", "", None),
        cross_validation().run_id: ("3 of 3 trials, val_loss 0.5 ± 0.25", "val_loss", None),
        without_a_lease().run_id: ("No such partition", "", None),
    }  # fmt: skip
    orphan = make_run(owner=ended_owner()).run_id
    expected[orphan] = (f"abandoned: its process has ended; headrace resume {orphan}", "", None)
    for each in FailureClass:
        state = {"cancelled": StepState.CANCELLED, "lost": StepState.LOST}.get(
            each.value, StepState.FAILED
        )
        run = ended_run(state, failure_class=each, message=f"of {each.value}\n  more")
        expected[run.run_id] = (f"train: of {each.value}", "", each.value)
    silent = ended_run(StepState.CANCELLED)
    expected[silent.run_id] = ("train: cancelled", "", None)
    return expected


def test_refused_requests_stand_below_the_runs_of_every_list_that_has_failed_ones():
    make_run()
    owner = "airflow:headrace_train:eves"
    with pytest.raises(UserError):
        make_run(owner=owner, key=owner, user="eve", overrides=("trainer.max_epoch=3",))
    (row,) = runs_page().refused
    for asked, states in (((), ()), (("--state", "failed"), (StepState.FAILED,))):
        assert runs_page(RunFilter(state=states)).refused == (row,)
        told = headrace("runs", *asked, columns=300).stdout.splitlines()[-1]
        assert re.fullmatch(
            rf"Refused [\d.]+ s ago to eve in Airflow: {re.escape(row.refused.splitlines()[0])}",
            told,
        )
    assert runs_page(RunFilter(state=(StepState.SUCCEEDED,))).refused == ()
    assert "Refused" not in headrace("runs", "--state", "succeeded").stdout


def test_terminal_json_and_page_say_the_same_of_every_run(
    told: Told, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.cli.console._PIPE_WIDTH", 400)  # no result is folded
    page = {
        row["run_id"]: row
        for row in json.loads(runs_page(RunFilter(kind=("all",))).model_dump_json())["rows"]
    }
    programs = {
        row["run_id"]: row for row in json.loads(headrace("runs", "--kind", "all", "--json").stdout)
    }
    lines = [
        line.rstrip() for line in headrace("runs", "--kind", "all", columns=300).stdout.splitlines()
    ]
    terminal = {line.split()[0]: line for line in lines[1:]}
    assert page.keys() == programs.keys() == terminal.keys() == told.keys()
    for run_id, (result, metric, failure_class) in told.items():
        row, line = page[run_id], terminal[run_id]
        assert row["metrics"] == {}  # in `--json` only
        for key in row.keys() - {"elapsed_s", "metrics"}:
            assert programs[run_id][key] == row[key], (run_id, key)
        assert line.endswith(result), (line, result)
        assert (row["metric"] or {"name": ""})["name"] == metric
        failure = row["failure"]
        assert (failure["failure_class"] if failure else None) == failure_class
        assert row["is_orphan"] == ("its process has ended" in line)
        assert row["state"] in line
        if metric and row["trials"] is None:
            assert f"{metric} {amount(row['metric']['value'])}" in line
        shown = json.loads(headrace("runs", "show", run_id, "--json").stdout)
        keys = row.keys() - {"elapsed_s", "metrics"}
        assert {key: shown[key] for key in keys} == {key: row[key] for key in keys}
    under_way = next(line for line in lines if line.endswith("val_loss 0.25"))
    assert re.search(r"3:00 of train +\$1.00\+\?", under_way)
