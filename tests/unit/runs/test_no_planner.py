"""Without the package of budgets and forecasts: the engine does without, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headrace.recipe.load import load_recipe, load_site
from headrace.runs import planning
from headrace.runs.planning import note_prediction
from headrace.runs.prediction import Prediction
from headrace.states import StepState
from headrace.status.cost import cost_page
from headrace.status.run_details import run_details
from headrace.suites import trial_order
from headrace.suites.records import Added, Ended, Started, Trial
from headrace.suites.suite_state import SuiteState
from support.runs import make_run

pytestmark = pytest.mark.usefixtures("headrace_home", "alone")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No package adds anything."""
    monkeypatch.setattr(planning, "load_group", lambda _: {})
    monkeypatch.setattr(trial_order, "load_group", lambda _: {})
    planning.planner.cache_clear()
    yield
    planning.planner.cache_clear()


def test_a_run_is_foretold_nothing_and_is_shown():
    run = make_run()
    note_prediction(run)
    found = Prediction.model_validate_json(run.folder.prediction.read_bytes())
    assert (found.seconds, found.parts) == (None, ())
    assert found.unknown == ("pack", "stage", "train", "evaluate")
    assert run_details(run.run_id).ahead is None
    assert cost_page().budgets == ()


def test_a_lifetime_that_is_to_be_chosen_is_the_longest(monkeypatch: pytest.MonkeyPatch):
    system = SimpleNamespace(name="Slurm", longest_job_s=lambda _: 86_400.0)
    monkeypatch.setattr(planning, "system_of", lambda _: system)
    site, recipe = load_site("laptop"), load_recipe("digits")
    assert planning.walltime_of(recipe, site, "gpu", "train") is None
    for most_s, why in (
        (7200.0, "`lifetime_max`, 2:00:00"),
        (None, "Slurm's longest job, 1 day, 0:00:00"),
    ):
        role = site.roles["gpu"].model_copy(update={"lifetime": "auto", "lifetime_max": most_s})
        chosen = site.model_copy(update={"roles": {**site.roles, "gpu": role}})
        found = planning.walltime_of(recipe, chosen, "gpu", "train")
        assert found.seconds == (most_s or 86_400.0)
        assert found.why == f"the longest, without a forecast: {why}"


def test_trials_take_what_those_before_took_on_average():
    suite_state = SuiteState()
    for number in range(1, 5):
        trial = Trial(number=number, name=str(number), values={}, group=number)
        suite_state.take(Added(trial=trial))
    order = trial_order.trial_order(load_recipe("digits", ()))
    times = {"started_at": 1000.0, "finished_at": 1010.0}
    suite_state.take(Started(number=1, attempt=1, node="node-0", at=1000.0))
    assert order.left(suite_state, lambda _: 0.0, 4) is None
    suite_state.take(Ended(number=1, attempt=1, state=StepState.SUCCEEDED, is_final=True, **times))
    suite_state.take(Started(number=2, attempt=1, node="node-0", at=time.time()))
    eta = order.left(suite_state, lambda _: 0.0, 4)
    assert eta.seconds == pytest.approx(30.0, abs=1.0)
