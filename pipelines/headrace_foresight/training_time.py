"""What trainings take: a start, and for each batch a fixed time and one for each sample.

What is fixed in a step (launching kernels, the optimizer, gradients sent) and what grows with a
rank's part of the batch, two sizes of it tell apart; as long as one is known, half is taken for
fixed. What else a duration depends on is the forecast's, of which this is one feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.recipe.recipe import Recipe
from headrace_foresight.forecast import (
    AGEING,
    Features,
    Forecast,
    durations,
    features_of,
    features_of_point,
)
from headrace_foresight.past_attempts import (
    BATCH,
    PastAttempt,
    alike_of,
    epoch_of,
    preferred,
    usual,
)

_LENGTHS = ("trainer.max_epochs", "trainer.max_steps", "data.samples_per_epoch", "ranks")
_DOUBT = 0.01
"""How much the even split of a step's time weighs, in trainings of a size of their own."""


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """How trainings of a recipe go."""

    start_s: float
    """Seconds that do not grow with the steps."""
    step_s: float
    """Fixed seconds of each batch of all ranks."""
    sample_s: float
    """Seconds of each sample of a rank's part of it."""

    def seconds(self, batches: float, of: Features) -> float:
        """What so many batches take."""
        return self.start_s + batches * (self.step_s + self.sample_s * _rank_batch(of))


def training_s(
    recipe: Recipe, wanted: Sequence[Features], taken: Sequence[PastAttempt], *, of_trials: bool
) -> tuple[list[Forecast], Sequence[PastAttempt]]:
    """What trainings of a recipe will take, and the earlier ones that tell, the newest last.

    Runs tell of runs, and trials of trials, if there are such; else each of the other. Processes
    of a trial are there: of runs only what grows with the steps tells of it. What was ended early
    tells of steps, and of a whole only if there is no other.

    Args:
        recipe: The recipe.
        wanted: As `features_of` gives them.
        taken: What steps of earlier runs took.
        of_trials: Whether they are trials.
    """
    alike = usual(alike_of("train", recipe, taken), taken)
    known = preferred(alike, lambda one: one.is_trial == of_trials)
    if of_trials and known and not known[0].is_trial:
        known = [replace(one, seconds=one.steps.seconds or one.seconds) for one in known]
    whole = preferred(known, lambda one: not one.is_pruned)
    samples, measured = epoch_of(recipe, taken), [one for one in known if one.steps.in_loop]
    if not measured or any(_per_epoch(of, samples) is None for of in wanted):
        return durations([(_features(one), one.seconds) for one in whole], wanted), whole
    time, whole = training_time(measured), preferred(measured, lambda one: not one.is_pruned)
    points = [
        (_expecting(_features(one), time, one.steps.num / one.steps.a_batch), one.seconds)
        for one in whole
    ]
    asked = [
        _expecting(of, time, _batches(of, measured[-1].steps.a_batch, samples)) for of in wanted
    ]
    return durations(points, asked), whole


def training_time(measured: Sequence[PastAttempt]) -> TrainingTime:
    """How trainings went that told of their steps, the newest last; long ones tell more.

    By least squares of the shares of a training's time that batches and samples have.
    """
    seconds = np.array([max(one.steps.loop_s, 1e-3) for one in measured])
    batches = np.array([one.steps.in_loop / one.steps.a_batch for one in measured])
    work = np.stack([batches, batches * [_rank_batch(_features(one)) for one in measured]])
    ages = AGEING ** np.arange(len(measured))[::-1]
    weights = ages * seconds / (ages @ seconds) * ages.sum()
    even = (seconds / work) @ weights / weights.sum() / 2
    shares = work * even[:, None] / seconds
    split = np.linalg.solve(
        shares * weights @ shares.T + _DOUBT * np.eye(2), shares @ weights + _DOUBT
    )
    each_s = even * np.maximum(split, 0.0)
    each_s *= (ages @ seconds) / (ages @ (each_s @ work))
    starts = np.array([one.start_s for one in measured])
    told = ages * [not one.is_pruned for one in measured]
    told = told if told.any() else ages
    return TrainingTime(
        start_s=float(told @ starts / told.sum()),
        step_s=float(each_s[0]),
        sample_s=float(each_s[1]),
    )


def _features(one: PastAttempt) -> Features:
    return {**features_of(one.recipe, one.ranks), **features_of_point(one.values)}


def _expecting(of: Features, time: TrainingTime, batches: float) -> Features:
    """Features with the time that is expected by its steps in place of how long it is."""
    kept = {name: value for name, value in of.items() if name not in _LENGTHS}
    return {**kept, "world_size": of["ranks"], "expected_s": time.seconds(batches, of)}


def _rank_batch(of: Features) -> float:
    return float(of[BATCH]) / float(of["ranks"])


def _per_epoch(of: Features, samples: float | None) -> int | None:
    """Batches of an epoch; None where nobody tells its samples."""
    own = of["data.samples_per_epoch"]
    samples = own if isinstance(own, float) else samples
    if samples is None:
        return None
    batches = samples / float(of[BATCH])
    return max(math.floor(batches) if of["data.drop_last"] == "True" else math.ceil(batches), 1)


def _batches(of: Features, steps_a_batch: int, samples: float | None) -> float:
    """Batches that a training goes over."""
    whole = float(of["trainer.max_epochs"]) * (_per_epoch(of, samples) or 0)
    most = float(of["trainer.max_steps"])
    return whole if most < 0 else min(whole, most / steps_a_batch)
