"""When a suite or a training will be done: by their steps, histories and journals."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.runs.prediction import Forecast
from headrace.states import StepState
from headrace.suites.records import Added, Ended, Started
from headrace.suites.schedule import NodeResources, Queue, Resources, place
from headrace.suites.suite_state import SuiteState, TrialState
from headrace_foresight.forecast import features_of
from headrace_foresight.past_attempts import PastAttempt, Steps
from headrace_foresight.pruning import rule_shares
from headrace_foresight.suite_order import ForecastOrder
from headrace_foresight.training_time import training_s
from headrace_foresight.trial_forecast import eta_of, forecasts_of, known_of
from support import suite_journal


def added(number: int, epochs: int) -> Added:
    return suite_journal.added(number, trainer__max_epochs=epochs, seed=number)


def ended(number: int, seconds: float, **changes: Any) -> Ended:
    times = {"started_at": 1000.0, "finished_at": 1000.0 + seconds}
    return suite_journal.ended(number, **times, **changes)


def started(number: int, ago_s: float) -> Started:
    return suite_journal.started(number, at=time.time() - ago_s)


@pytest.fixture
def suite_state() -> SuiteState:
    """A suite of ten trials with 1 to 10 epochs."""
    found = SuiteState()
    for number in range(1, 11):
        found.take(added(number, number))
    return found


def half(_: TrialState) -> float:
    return 0.5


def unknown(_: TrialState) -> float:
    return 0.0


def test_trials_that_ended_tell_of_those_to_come(suite_state: SuiteState):
    for number in (1, 2, 4, 6):
        suite_state.take(ended(number, 10.0 * number))
    taken, left = forecasts_of(suite_state)
    assert [each.seconds for each in taken] == [10.0, 20.0, 40.0, 60.0]
    assert [each.seconds for each in left] == [
        pytest.approx(10.0 * epochs, rel=0.1) for epochs in (3, 5, 7, 8, 9, 10)
    ]
    for number in (9, 10):
        suite_state.take(started(number, 0.0))
    found = eta_of(suite_state, unknown, 10)
    assert found.seconds == pytest.approx(210, rel=0.2)  # half of 420 s, well shared out
    assert 0 < found.half_s < 60
    more = eta_of(suite_state, unknown, 30)  # a sampler has 20 to come, of which nothing is known
    assert more.seconds > 2 * found.seconds


def test_all_attempts_at_a_trial_count_but_not_those_that_came_to_nothing(suite_state: SuiteState):
    suite_state.take(started(3, 0.0))
    suite_state.take(ended(3, 20.0, state=StepState.PREEMPTED, is_final=False))
    suite_state.take(ended(3, 15.0, attempt=2))
    suite_state.take(ended(4, 1.0, state=StepState.FAILED))
    suite_state.take(ended(5, 2.0, pruned=True))
    assert [seconds for _, seconds in known_of(suite_state.rows.values())] == [35.0]


def test_trials_that_run_tell_as_long_as_none_has_ended(suite_state: SuiteState):
    suite_state.take(started(2, 10.0))
    assert eta_of(suite_state, unknown, 10) is None
    found = eta_of(suite_state, half, 10)
    assert found.seconds == pytest.approx(10 + 530, rel=0.3)  # 20 s, that is 10 s an epoch


def test_trials_that_were_ended_early_shorten_what_is_left(suite_state: SuiteState):
    for number in range(11, 41):
        suite_state.take(added(number, 10))
    for number in (9, 10):
        suite_state.take(ended(number, 10.0 * number))
    suite_state.take(started(8, 0.0))
    whole = eta_of(suite_state, unknown, 40)
    for number in range(11, 19):
        suite_state.take(ended(number, 10.0, pruned=True))
    found = eta_of(suite_state, unknown, 40)
    assert whole is not None
    assert found is not None
    left_s = 280 + 22 * 100  # of 7 trials of 1 to 7 epochs and 22 of 10, that have not begun
    assert whole.seconds == pytest.approx(80 + left_s + 8 * 100, rel=0.1)
    assert found.seconds == pytest.approx(80 + left_s * (2 + 8 * 0.1) / 10, rel=0.25)


def test_the_rule_of_a_pruner_counts_until_trials_have_shown_what_it_does(suite_state: SuiteState):
    for number in range(11, 41):
        suite_state.take(added(number, 10))
    suite_state.take(ended(10, 100.0))
    suite_state.take(started(9, 0.0))
    plain = eta_of(suite_state, unknown, 40)
    by_rule = eta_of(suite_state, unknown, 40, (0.1, 0.1, 0.1, 1.0))
    for number in range(11, 31):  # it ends none, after all
        suite_state.take(ended(number, 100.0))
    later = [eta_of(suite_state, unknown, 40, rule) for rule in ((), (0.1, 0.1, 0.1, 1.0))]
    assert by_rule.seconds < 0.6 * plain.seconds
    assert later[0] is not None
    assert later[1] is not None
    assert later[1].seconds > 0.8 * later[0].seconds


def test_a_search_asks_the_rule_of_its_pruner(suite_state: SuiteState):
    space = "{model.learning_rate: 'interval(1e-4, 1e-1)'}"
    suite = f"+suite={{search: {{space: {space}, trials: 40, pruner: asha}}}}"
    words = (suite, "trainer.max_epochs=12", "trainer.monitor=val/accuracy")
    suite_state.take(ended(10, 100.0))
    suite_state.take(started(9, 0.0))
    pruned = ForecastOrder(load_recipe("digits", words)).left(suite_state, unknown, 40)
    plain = ForecastOrder(load_recipe("digits", ())).left(suite_state, unknown, 40)
    assert pruned.seconds < 0.7 * plain.seconds


def test_trials_that_were_ended_early_are_news(suite_state: SuiteState):
    suite_state.take(ended(10, 100.0))
    suite_state.take(started(9, 0.0))
    outlook = ForecastOrder(load_recipe("digits", ()))
    first = outlook.left(suite_state, unknown, 10)
    for number in range(1, 5):
        suite_state.take(ended(number, 1.0, pruned=True))
    again = outlook.left(suite_state, unknown, 10)
    assert again.seconds < 0.7 * first.seconds


def test_what_runs_is_corrected_by_how_far_it_is(suite_state: SuiteState):
    for number in (1, 2, 3, 4, 6, 7, 8, 9, 10):
        suite_state.take(ended(number, 10.0 * number))
    suite_state.take(started(5, 80.0))
    slow, late = eta_of(suite_state, lambda _: 0.8, 10), eta_of(suite_state, unknown, 10)
    assert slow is not None
    assert late is not None
    assert slow.seconds == pytest.approx(20.0, rel=0.5)
    assert late.seconds > 1.0  # it outlasts its forecast, and does not end at once


def test_thousands_of_trials_are_told_by_some_of_them(suite_state: SuiteState):
    for number in range(11, 3011):
        suite_state.take(added(number, number % 10 + 1))
    for number in range(11, 111):
        suite_state.take(ended(number, 3.0 * (number % 10 + 1)))
    for number in range(111, 131):
        suite_state.take(started(number, 0.0))
    found = eta_of(suite_state, unknown, 3010)
    assert found.seconds == pytest.approx(2910 * 16.5 / 20, rel=0.1)


def test_an_outlook_counts_down_until_it_is_thought_over(suite_state: SuiteState):
    assert ForecastOrder(load_recipe("digits", ())).left(suite_state, half, 10) is None
    suite_state.take(started(2, 10.0))
    outlook = ForecastOrder(load_recipe("digits", ()))
    first = outlook.left(suite_state, half, 10)
    assert first is not None
    again = outlook.left(suite_state, half, 10)
    assert first.seconds - 5 < again.seconds <= first.seconds
    assert again.half_s == first.half_s
    suite_state.take(ended(2, 5000.0))
    suite_state.take(started(3, 0.0))
    told = outlook.left(suite_state, half, 10)  # that one has ended is news
    assert told.seconds > 5 * first.seconds


EPOCHS = (1, 2, 4, 1, 8, 2)


def _suite_state(num_ended: int) -> tuple[SuiteState, Queue]:
    """Trials of so many epochs, of which the first have ended after ten seconds for each."""
    suite_state, queue = SuiteState(), Queue()
    for number, epochs in enumerate(EPOCHS, 1):
        suite_state.take(added(number, epochs))
        if number > num_ended:
            queue.push(number, Resources())
            continue
        suite_state.take(started(number, 0.0))
        suite_state.take(ended(number, 10.0 * epochs))
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


def search(pruner: str, trials: int = 40) -> Recipe:
    """A search with twelve validations a trial."""
    space = "{model.learning_rate: 'interval(1e-4, 1e-1)'}"
    suite = f"{{search: {{space: {space}, trials: {trials}, pruner: {pruner}}}}}"
    words = (f"+suite={suite}", "trainer.max_epochs=24", "trainer.val_every_epochs=2")
    return load_recipe("digits", (*words, "trainer.monitor=val/accuracy"))


def test_successive_halving_ends_three_of_four_after_the_first_validation():
    shares = rule_shares(search("asha"), 2)
    first = shares.count(1 / 12) / len(shares)
    assert first == pytest.approx(0.75, abs=0.1)
    assert set(shares) <= {1 / 12, 4 / 12, 1.0}


def test_the_median_rule_spares_the_first_five():
    assert set(rule_shares(search("median", 5), 1)) == {1.0}
    later = rule_shares(search("median"), 2)
    assert 0.3 < statistics.mean(later) < 0.7


def test_hyperband_ends_some():
    assert 0.2 < statistics.mean(rule_shares(search("hyperband"), 2)) < 0.8


@pytest.mark.parametrize("pruner", ["none", "{_target_: optuna.pruners.NopPruner}"])
def test_nothing_is_known_of_other_rules(pruner: str):
    assert rule_shares(search(pruner), 2) == ()


def test_no_trial_of_a_grid_is_ended():
    assert rule_shares(load_recipe("digits", ("+suite={grid: {seed: [1, 2]}}",)), 2) == ()


START_S, FIXED_S, SAMPLE_S = 10.0, 0.2, 0.01


def recipe_of(epochs: int, batch: int) -> Recipe:
    """A recipe with 640 training samples."""
    return load_recipe(
        "digits",
        (
            "dataset.splits={train: 0.64, val: 0.18, test: 0.18}",
            f"trainer.max_epochs={epochs}",
            f"data.global_batch_size={batch}",
        ),
    )


PACKED = PastAttempt(
    kind="pack", recipe=recipe_of(1, 64), ranks=1, seconds=1.0, was_done=True, attempts=1,
    num_samples=1000, num_bytes=None, run_id="pack",
)  # fmt: skip


def steps_s(epochs: int, batch: int, ranks: int) -> float:
    return 640 // batch * epochs * (FIXED_S + SAMPLE_S * batch / ranks)


def training(epochs: int, batch: int = 64, ranks: int = 2, **changes: Any) -> PastAttempt:
    """A run that told of its steps."""
    batches, loop_s = 640 // batch * epochs, steps_s(epochs, batch, ranks)
    values: dict[str, Any] = {
        "kind": "train", "recipe": recipe_of(epochs, batch), "ranks": ranks,
        "seconds": START_S + loop_s, "was_done": False, "attempts": 1, "num_bytes": None,
        "steps": Steps(batches, 1, batches, loop_s), "run_id": "run",
    }  # fmt: skip
    return PastAttempt(**{**values, **changes})


def trial(epochs: int, batch: int = 64, **changes: Any) -> PastAttempt:
    """A trial, whose process was there."""
    told = {"is_trial": True, "seconds": 1.0 + steps_s(epochs, batch, 1), **changes}
    return training(epochs, batch, 1, **told)


def asked(
    *known: PastAttempt, epochs: int, batch: int = 64, ranks: int = 2, of_trials: bool = False
) -> tuple[Forecast, list[PastAttempt]]:
    recipe = recipe_of(epochs, batch)
    wanted = [features_of(recipe, ranks)]
    (found,), told = training_s(recipe, wanted, [PACKED, *known], of_trials=of_trials)
    return found, list(told)


@pytest.mark.parametrize("ranks", [1, 4])
def test_more_ranks_share_the_samples_of_a_step_but_not_what_is_fixed(ranks: int):
    known = (training(4), training(8), training(6, ranks=8))
    found, _ = asked(*known, epochs=20, ranks=ranks)
    assert found.seconds == pytest.approx(START_S + steps_s(20, 64, ranks), rel=0.06)


def test_a_size_that_is_not_known_makes_the_interval_wider():
    known = (training(4), training(8), training(6))
    same, new = asked(*known, epochs=20)[0], asked(*known, epochs=20, batch=256)[0]
    assert new.interval[1] / new.seconds > 1.1 * same.interval[1] / same.seconds


def test_runs_tell_of_the_first_trials_what_grows_with_their_steps():
    known = (training(4), training(8), training(6, 128))
    found, told = asked(*known, epochs=10, ranks=1, of_trials=True)
    assert found.seconds == pytest.approx(steps_s(10, 64, 1), rel=0.06)
    assert len(told) == 3


def test_trials_tell_of_the_first_run():
    known = (trial(4), trial(8, 32), trial(6, 128))
    found, told = asked(*known, epochs=100)
    assert found.seconds == pytest.approx(1.0 + steps_s(100, 64, 2), rel=0.06)
    assert all(one.is_trial for one in told)


def test_where_there_are_both_each_tells_of_its_own():
    known = (training(4), trial(5), trial(7), training(8))
    assert asked(*known, epochs=6)[1] == [known[0], known[3]]
    assert asked(*known, epochs=6, ranks=1, of_trials=True)[1] == [known[1], known[2]]


def test_trials_that_were_ended_early_tell_of_steps_and_not_of_a_whole():
    early = [
        trial(12, 32, steps=Steps(20, 1, 20, 20 * (FIXED_S + SAMPLE_S * 32)),
              seconds=0.2 + 20 * (FIXED_S + SAMPLE_S * 32), is_pruned=True)
        for _ in range(6)
    ]  # fmt: skip
    found, told = asked(trial(12), *early, epochs=12, batch=32, ranks=1, of_trials=True)
    assert found.seconds == pytest.approx(1.0 + steps_s(12, 32, 1), rel=0.06)
    assert len(told) == 1
    only = asked(*early, epochs=12, batch=32, ranks=1, of_trials=True)[0]
    assert only.seconds == pytest.approx(0.2 + steps_s(12, 32, 1), rel=0.06)


def test_where_an_epoch_is_not_known_a_training_grows_with_its_epochs():
    recipe = recipe_of(12, 64)
    (found,), _ = training_s(recipe, [features_of(recipe, 2)], [training(4)], of_trials=False)
    assert found.seconds == pytest.approx(3 * training(4).seconds, rel=0.01)
