"""Which trials the figures of a suite show."""

from __future__ import annotations

import pytest

from headrace.ledger.trial_rows import TrialRecord
from headrace.recipe.suite import Objective
from headrace.states import StepState
from headrace.suites.suite_report import _drawn_of


def row(number: int, objective: float) -> TrialRecord:
    return TrialRecord(
        run_id="r", number=number, name=str(number), group=number, state=StepState.SUCCEEDED,
        objective=objective, objectives=(objective,), created_at=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(("mode", "best"), [("max", 2999), ("min", 0)])
def test_of_very_many_trials_the_best_are_drawn(mode, best):
    rows = [row(number, float(number)) for number in range(3000)]
    drawn = {each.number for each in _drawn_of(rows, Objective(metric="acc", mode=mode))}
    assert len(drawn) == 2000
    assert {abs(best - place) for place in range(200)} <= drawn
    assert _drawn_of(rows[:2000], Objective(metric="acc", mode=mode)) == rows[:2000]
