"""A name is a run, the newest one, or a trial; a suite's model is that of its best trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import api
from headrace.errors import HeadraceError, StepCancelledError, UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.ledger.usage_records import UsageRecord
from headrace.runs.names import best_trial, named, with_model
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.status.logs import report_file
from headrace.status.run_page import run_page
from headrace.status.suite import suite_page
from headrace.steps.mailbox import StepResult
from headrace.suites.records import Control
from headrace.suites.suite_state import Controls, SuiteState
from headrace.suites.suite_step import _outputs
from support.ledger_rows import machine_row
from support.runs import lease_on_disk, make_run
from support.suite_journal import added, ended, failed, journal, make_suite, started

pytestmark = pytest.mark.usefixtures("headrace_home")


@pytest.fixture
def suite(headrace_home: Path) -> Run:
    """Three trials: one failed, the second is best."""
    run = make_suite(overrides=("trainer.monitor=val_loss",))
    journal(
        run.folder,
        *(entry for number in (1, 2, 3) for entry in (added(number, seed=number), started(number))),
        *(ended(1, 0.5), ended(2, 0.25), failed(3)),
    )
    return run


def test_a_name_is_a_run_the_newest_or_a_trial(suite: Run):
    run = make_run()
    assert [named(each).name for each in (None, "latest", run.run_id)] == [run.run_id] * 3
    found = named(f"{suite.run_id}:2")
    assert (found.name, found.folder) == (f"{suite.run_id}:2", suite.folder.trial(2))


def test_a_name_with_a_model_may_name_the_checkpoint_and_a_suite_stands_for_its_best(
    suite: Run, caplog: pytest.LogCaptureFixture
):
    run, two = make_run().run_id, f"{suite.run_id}:2"
    for name, expected in (
        (run, (run, "")),
        (f"{run}:7", (run, "7")),
        (two, (two, "")),
        (f"{two}:last", (two, "last")),
        (suite.run_id, (two, "")),
        (f"{suite.run_id}:last", (two, "last")),
    ):
        found, checkpoint = with_model(name)
        assert (found.name, checkpoint) == expected
    assert with_model(two, "last")[1] == "last"
    assert f"{suite.run_id}: 2, seed2" in caplog.text
    assert "min val_loss 0.25" in caplog.text
    with pytest.raises(UserError, match="names a checkpoint already"):
        with_model(f"{run}:7", "last")


@pytest.mark.parametrize("number", ["0", "4", "x", "", "-1", "9" * 30, "1:2", "²"])
def test_an_unknown_trial_is_refused(suite: Run, number: str):
    for run_id in (suite.run_id, make_run().run_id):
        with pytest.raises(UnknownNameError, match=f"{run_id} has no trial"):
            named(f"{run_id}:{number}")


@pytest.mark.parametrize(
    ("objective", "values", "why"),
    [
        (("+suite={objectives: [{metric: a}, {metric: b}]}",), {}, "one objective .a, b."),
        (
            ("trainer.monitor=val_loss",),
            None,
            "val_loss., no folds, and a trial",
        ),
        (("trainer.monitor=val_loss",), {"data__fold": 1}, "no folds"),
    ],
)
def test_a_suite_without_a_best_trial_is_refused(objective, values, why):
    run = make_suite(overrides=objective)
    entries = () if values is None else (started(1), ended(1, 0.5))
    journal(run.folder, added(1, **(values or {})), *entries)
    with pytest.raises(UserError, match=why) as told:
        best_trial(open_ledger().run(run.run_id))
    assert f"{run.run_id}:1" in told.value.hint


def test_a_trial_has_a_page_of_a_run(suite: Run):
    page = run_page(f"{suite.run_id}:3", can_act=True)
    assert (page.kind, page.state, page.run_id) == ("trial", "failed", f"{suite.run_id}:3")
    assert [(row.step, row.attempt, row.message) for row in page.attempts] == [
        ("train", 1, "it broke\n  more")
    ]
    page = run_page(f"{suite.run_id}:2", can_act=True)
    assert page.metric is not None
    assert (page.metric.name, page.metric.value) == ("val_loss", 0.25)
    assert page.rerun == f"headrace rerun {suite.run_id}:2"


def test_a_trial_is_known_to_python_and_costs_what_its_attempts_do(suite: Run):
    machine = machine_row(lease_id=lease_on_disk(suite), usd_per_hour=2.0)
    open_ledger().put_machines([machine])
    used = UsageRecord(
        run_id=suite.run_id, step="suite", trial=2, kind="trial", lease_id=machine.lease_id,
        machine_id=machine.machine_id, cause="succeeded", created_at=1, until=2, node_s=1800,
    )  # fmt: skip
    open_ledger().put_trials([], [used])
    outputs = {"metrics": {"val_loss": 0.25}, "checkpoint": "/a/final.ckpt"}
    result = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2, outputs=outputs)
    write_record(suite.folder.trial(2).step(1).result, result)
    found = api.result(f"{suite.run_id}:2")
    assert (found.state, found.metrics) == ("succeeded", {"val_loss": 0.25})
    assert (found.checkpoint, found.report) == (Path("/a/final.ckpt"), None)
    assert found.folder == suite.folder.trial(2).path
    assert len(found.trials) == 3
    cost = found.details.cost
    assert cost is not None
    assert (cost.usd, cost.hours) == (1.0, 0.5)


def test_the_report_of_a_suite_is_found(suite: Run):
    assert suite_page(suite.run_id, can_act=True).report == ""
    end_run(suite, StepState.SUCCEEDED, "a test")
    assert suite_page(suite.run_id, can_act=True).report.endswith(suite.run_id)
    assert report_file(suite.run_id) == suite.folder.report / "report.html"


@pytest.mark.parametrize(
    ("commands", "is_cancelled"),
    [
        ((("cancel", ()),), True),
        ((("cancel", (1,)),), False),
        ((("cancel", ()), ("cancel", (1,))), True),
        ((("cancel", ()), ("retry", ())), False),
    ],
)
def test_a_suite_cancelled_at_once_is_cancelled_and_one_without_some_trials_is_not(
    suite: Run, commands, is_cancelled
):
    state = SuiteState()
    for entry in (added(1), added(2), started(1), ended(1, 0.5)):
        state.take(entry)
    state.take(started(2))
    state.take(ended(2, state=StepState.CANCELLED))
    with suite.folder.controls.open("a") as file:
        for what, numbers in commands:
            file.write(f"{Control(what=what, numbers=numbers, by='ada').model_dump_json()}\n")
    controls = Controls(suite.folder, None)
    controls.apply_commands(state, lambda _point: ())
    try:
        told: object = _outputs(state)
    except HeadraceError as error:
        told = error
    assert isinstance(told, StepCancelledError) is is_cancelled
