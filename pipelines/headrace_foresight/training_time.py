"""Durations of trainings: a start, and for each batch a fixed time and a time per sample.

A step has a fixed part (launching kernels, the optimizer, gradients sent) and a part that grows
with a rank's part of the batch. Two batch sizes separate them; with one known size, half is taken
as fixed. The forecast covers all other dependencies; this time is one of its features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.recipe.recipe import Recipe
from headrace.runs.prediction import Forecast
from headrace_foresight.forecast import (
    AGEING,
    Features,
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
"""Weight of the even split of a step's time, in trainings of their own size."""


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Parts of the duration of a recipe's trainings."""

    start_s: float
    """Seconds that do not grow with the steps."""
    step_s: float
    """Fixed seconds of each batch of all ranks."""
    sample_s: float
    """Seconds of each sample in a rank's part of it."""

    def seconds(self, batches: float, of: Features) -> float:
        """Return the seconds of so many batches."""
        return self.start_s + batches * (self.step_s + self.sample_s * _rank_batch(of))


def training_s(
    recipe: Recipe, wanted: Sequence[Features], taken: Sequence[PastAttempt], *, of_trials: bool
) -> tuple[list[Forecast], Sequence[PastAttempt]]:
    """Return what trainings of a recipe will take, and the earlier ones used, the newest last.

    Runs are forecast from runs and trials from trials, if there are any; else each from the other.
    A trial's processes exist before it: of runs only the part that grows with the steps is used for
    it. A training that ended early informs about steps; about a whole only if there is no other.

    Args:
        recipe: The recipe.
        wanted: Features as of `features_of`.
        taken: What steps of earlier runs took.
        of_trials: Whether the trainings are trials.
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
    """Return the parts by trainings with reported steps, the newest last; long ones count more.

    Least squares over the shares that batches and samples have in a training's time.
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
    weights = ages * [not one.is_pruned for one in measured]
    weights = weights if weights.any() else ages
    return TrainingTime(
        start_s=float(weights @ starts / weights.sum()),
        step_s=float(each_s[0]),
        sample_s=float(each_s[1]),
    )


def _features(one: PastAttempt) -> Features:
    return {**features_of(one.recipe, one.ranks), **features_of_point(one.values)}


def _expecting(of: Features, time: TrainingTime, batches: float) -> Features:
    """Return features with the expected time of its steps in place of its length."""
    kept = {name: value for name, value in of.items() if name not in _LENGTHS}
    return {**kept, "world_size": of["ranks"], "expected_s": time.seconds(batches, of)}


def _rank_batch(of: Features) -> float:
    return float(of[BATCH]) / float(of["ranks"])


def _per_epoch(of: Features, samples: float | None) -> int | None:
    """Return the batches of an epoch; None if its samples are unknown."""
    own = of["data.samples_per_epoch"]
    samples = own if isinstance(own, float) else samples
    if samples is None:
        return None
    batches = samples / float(of[BATCH])
    return max(math.floor(batches) if of["data.drop_last"] == "True" else math.ceil(batches), 1)


def _batches(of: Features, steps_a_batch: int, samples: float | None) -> float:
    """Return the batches of a whole training."""
    whole = float(of["trainer.max_epochs"]) * (_per_epoch(of, samples) or 0)
    most = float(of["trainer.max_steps"])
    return whole if most < 0 else min(whole, most / steps_a_batch)
