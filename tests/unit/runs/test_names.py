"""A name is a run, the newest one, or a trial; a suite's model is that of its best trial."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace import api
from headrace.checkpoints.files import chosen
from headrace.errors import HeadraceError, StepCancelledError, UnknownNameError, UserError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import Marks
from headrace.ledger.usage_records import UsageRecord
from headrace.runs.audit import Actor
from headrace.runs.names import named, with_model
from headrace.runs.origin import origin
from headrace.runs.runs import Run, open_run
from headrace.runs.suites import ask
from headrace.states import BY_HAND, StepState
from headrace.status.logs import report_file
from headrace.status.run_details import run_details
from headrace.status.run_list import mark_runs
from headrace.status.run_page import run_page
from headrace.status.suite import suite_page
from headrace.steps.mailbox import StepResult
from headrace.suites.records import Control
from headrace.suites.suite_state import Controls, SuiteState
from headrace.suites.suite_step import outputs_of
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
        (("+suite={objectives: [{metric: a}, {metric: b}]}",), {}, "one objective .min a, min b."),
        (
            ("trainer.monitor=val_loss",),
            None,
            "min val_loss., no folds, and a trial",
        ),
        (("trainer.monitor=val_loss",), {"data__fold": 1}, "no folds"),
    ],
)
def test_a_suite_without_a_best_trial_is_refused(objective, values, why):
    run = make_suite(overrides=objective)
    entries = () if values is None else (started(1), ended(1, 0.5))
    journal(run.folder, added(1, **(values or {})), *entries)
    with pytest.raises(UserError, match=why) as told:
        with_model(run.run_id)
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
        told: object = outputs_of(state)
    except HeadraceError as error:
        told = error
    assert isinstance(told, StepCancelledError) is is_cancelled


def test_the_main_metric_of_a_trial_is_the_objective_of_its_suite():
    run = make_suite(overrides=("+suite={objectives: [{metric: f1, mode: max}]}",))
    write_record(run.folder.trial(1).recipe, run.recipe)
    found = {"f1": 0.5, "accuracy": 0.7, "val_loss": 0.1}
    journal(run.folder, added(1), started(1), ended(1, 0.5, metrics=found))
    metric = run_details(f"{run.run_id}:1").metric
    assert metric is not None
    assert (metric.name, metric.value) == ("f1", 0.5)


def test_what_takes_whole_runs_refuses_a_trial_and_says_how_it_runs_again(suite: Run):
    for refuses in (open_run, lambda name: mark_runs([name], Marks(star=True), Actor.here())):
        with pytest.raises(UnknownNameError, match=f"{suite.run_id}:3' names a trial") as told:
            refuses(f"{suite.run_id}:3")
        assert f"headrace suite retry {suite.run_id} 3" in told.value.hint


def test_errors_about_a_trial_name_its_suite_and_its_values_are_its_overrides(suite: Run):
    found = named(f"{suite.run_id}:2")
    with pytest.raises(UnknownNameError, match=f"{suite.run_id}:2 has no checkpoint '7'"):
        chosen(found.folder, "7")
    view = run_details(found.name)
    assert (view.overrides, view.seed) == (("seed=2",), 2)


def test_a_suite_whose_folder_is_gone_is_a_suite_and_its_trials_ended_as_they_did(suite: Run):
    named(f"{suite.run_id}:2")
    end_run(suite, StepState.SUCCEEDED, "a test")
    shutil.rmtree(suite.folder.path)
    two, view = run_details(f"{suite.run_id}:2"), run_details(suite.run_id)
    assert (view.kind, view.trials and view.trials.ended) == ("suite", 3)
    assert (two.state, two.steps[0].state) == ("succeeded", "succeeded")
    assert (two.removed and two.removed.by) == BY_HAND
    record = open_ledger().run(suite.run_id)
    for refused in (lambda: ask(record, "retry"), lambda: origin(suite.run_id)):
        with pytest.raises(UnknownNameError, match="was removed on"):
            refused()
