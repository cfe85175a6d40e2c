"""The page of a suite, and its trials by columns: all, or those that have changed."""

from __future__ import annotations

import json

import optuna
import pytest

from headrace.errors import UserError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.runs.results import write_report
from headrace.status.suite import suite_page, trials_page
from headrace.suites import suite_report
from headrace.suites.records import RunningTrial, SuiteSummary
from support.runs import make_run
from support.suite_journal import added, ended, failed, journal, make_suite, started


@pytest.fixture
def suite() -> RunFolder:
    """Three trials: one has ended well, one has failed, one waits."""
    run = make_suite(overrides=("trainer.monitor=val_loss",)).folder
    journal(run, *(added(number, model__lr=number / 10, seed=0) for number in (1, 2, 3)))
    journal(run, started(1), started(2), ended(1, 0.5), failed(2))
    return run


def test_trials_by_columns(suite: RunFolder):
    told = trials_page(suite.run_id)
    columns = told.columns
    assert (told.is_part, told.version) == (False, suite.journal.stat().st_size)
    assert columns.number == (1, 2, 3)
    assert columns.state == ("succeeded", "failed", "queued")
    assert columns.objective == (0.5, None, None)
    assert columns.why == ("", "it broke", "")
    assert columns.values == {"model.lr": (0.1, 0.2, 0.3), "seed": (0, 0, 0)}
    assert columns.metrics == {"val_loss": (0.5, None, None)}
    assert columns.node == ("node-a", "node-a", "")


def test_only_trials_that_have_changed_are_sent_again(suite: RunFolder):
    before = trials_page(suite.run_id).version
    nothing = trials_page(suite.run_id, before)
    assert (nothing.is_part, nothing.version, nothing.columns.number) == (True, before, ())
    journal(suite, started(3), ended(3, 0.25, pruned=True), added(4, model__lr=1.0))
    part = trials_page(suite.run_id, before)
    assert (part.is_part, part.columns.number) == (True, (3, 4))
    assert part.columns.state == ("pruned", "queued")
    assert trials_page(suite.run_id, part.version + 1).is_part is False


def test_how_a_suite_stands(suite: RunFolder):
    running = RunningTrial(
        number=3, name="lr0.3", attempt=1, node="node-b", started_at=1.0, done=0.5
    )
    summary = SuiteSummary(
        total=3, counts={"running": 1}, paused=True, running=(running,), eta_s=60.0, eta_error_s=5.0
    )
    write_record(suite.summary, summary)
    told = suite_page(suite.run_id, can_act=False)
    assert (told.paused, told.eta_s, told.eta_error_s, told.report) == (True, 60.0, 5.0, "")
    assert (told.best, told.best_value) == (1, 0.5)
    assert [(each.number, each.done) for each in told.running] == [(3, 0.5)]
    assert [each.metric for each in told.objectives] == ["val_loss"]
    assert (told.run_id, told.kind, told.can_act) == (suite.run_id, "suite", False)


def test_a_run_without_trials_is_refused():
    with pytest.raises(UserError, match="is not a suite"):
        trials_page(make_run().run_id)


def test_keys_that_are_sampled_by_orders_of_magnitude_are_drawn_so(monkeypatch: pytest.MonkeyPatch):
    """Also where one order has them all; on the page, and in the figures of the report."""
    space = {"model.lr": "tag(log, interval(1e-3, 1e-2))", "model.hidden": "interval(1, 9)"}
    search = f"suite.search={json.dumps({'space': space, 'trials': 3})}"
    run = make_suite(overrides=(search, "trainer.monitor=val_loss"))
    assert suite_page(run.run_id, can_act=False).log_keys == ("model.lr",)
    assert (
        suite_page(make_suite(overrides=("suite.points=[{}]",)).run_id, can_act=False).log_keys
        == ()
    )
    journal(run.folder, *(added(at, model__lr=lr, model__hidden=at) for at, lr in LRS.items()))
    journal(run.folder, *(each for at in LRS for each in (started(at), ended(at, 0.5 / at))))
    scales = {}

    def seen(_: object, study: optuna.Study, **__: object) -> bytes:
        kinds = study.trials[0].distributions.items()
        scales.update({key: kind.log for key, kind in kinds})
        return b""

    monkeypatch.setattr(suite_report, "_drawn", seen)
    assert write_report(open_ledger().run(run.run_id)).exists()
    assert scales == {"model.lr": True, "model.hidden": False}


LRS = {1: 1e-3, 2: 10**-2.5, 3: 1e-2}


def test_the_best_trial_is_found_behind_any_number_that_were_pruned(suite: RunFolder):
    """Pruned ones have the values at which they were ended, which may all be better."""
    many = range(4, 1504)
    journal(suite, *(added(number) for number in many))
    journal(suite, *(ended(number, 0.001, pruned=True) for number in many))
    assert suite_page(suite.run_id, can_act=False).best == 1
