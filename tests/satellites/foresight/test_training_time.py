"""What trainings take by their steps: of runs and of trials, which tell of each other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace_foresight.forecast import Forecast, features_of
from headrace_foresight.past_attempts import PastAttempt, Steps
from headrace_foresight.training_time import training_s

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
