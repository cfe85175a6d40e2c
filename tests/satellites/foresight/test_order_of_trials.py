"""The order of trials that wait."""

from __future__ import annotations

import pytest

from headrace.recipe.load import load_recipe
from headrace.states import StepState
from headrace.suites.records import Added, Ended, Started
from headrace.suites.schedule import NodeResources, Queue, Resources, place
from headrace.suites.suite_state import SuiteState
from headrace_foresight.trial_forecast import ForecastOrder
from support.scripted_trials import trial

EPOCHS = (1, 2, 4, 1, 8, 2)


def _suite_state(num_ended: int) -> tuple[SuiteState, Queue]:
    """Trials of so many epochs, of which the first have ended after ten seconds for each."""
    suite_state, queue = SuiteState(), Queue()
    for number, epochs in enumerate(EPOCHS, 1):
        suite_state.take(Added(trial=trial(number, **{"trainer.max_epochs": epochs})))
        if number > num_ended:
            queue.push(number, Resources())
            continue
        suite_state.take(Started(number=number, attempt=1, node="node-0"))
        ended = Ended(
            number=number,
            attempt=1,
            state=StepState.SUCCEEDED,
            is_final=True,
            started_at=100.0,
            finished_at=100.0 + 10.0 * epochs,
        )
        suite_state.take(ended)
    return suite_state, queue


@pytest.mark.parametrize(
    ("num_ended", "numbers"),
    [(0, [1, 2, 3, 4, 5, 6]), (2, [5, 3, 6, 4]), (3, [5, 6, 4]), (6, [])],
)
def test_the_longest_are_put_first_as_soon_as_something_is_known(
    num_ended: int, numbers: list[int]
) -> None:
    suite_state, queue = _suite_state(num_ended)
    expected_s = ForecastOrder(load_recipe("digits", ())).expected(suite_state)
    assert (expected_s is None) is (num_ended == 0)
    if expected_s is not None:
        queue.reorder(expected_s)
    begun = [each.number for each in place(queue, [NodeResources("node-0", 0, range(9))])]
    assert begun == numbers
