"""The prediction of a run: made before it begins, kept in its folder, corrected as it runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from headrace.checkpoints.files import newest_step
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.database import grouped
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.runs.planned_steps import PlannedStep, steps_of
from headrace.runs.prediction import (
    BETWEEN,
    Ahead,
    Forecast,
    PredictedPart,
    Prediction,
    StepSeen,
)
from headrace.states import StepState
from headrace.steps.mailbox import StepStatus
from headrace.steps.step_kinds import StepOptions
from headrace.suites.records import SuiteSummary
from headrace.suites.trial_order import Eta
from headrace_foresight.past_attempts import (
    SUITE,
    PastAttempt,
    features_for,
    known_of,
    past_of,
    runs_of,
    slots,
    usual,
)

if TYPE_CHECKING:
    from headrace_foresight.forecast import Features

logger = logging.getLogger(__name__)


def predict(
    recipe: Recipe, site: Site, kind: str, options: StepOptions | None = None
) -> Prediction:
    """Return what a run of this kind will take, by earlier runs of the recipe on the site.

    For a kind with options, only runs with the same options count.
    """
    from headrace_foresight.forecast import eta

    steps, taken = steps_of(recipe, kind), past_of(recipe, site, kind, options)
    packed = [one for one in taken if one.kind == "pack"]
    parts = [part for step in steps if (part := part_of(step, recipe, site, taken))]
    unknown = tuple(step.name for step in steps if step.name not in {each.name for each in parts})
    names = {step.name for step in steps if step.role == recipe.train.role}
    on_cpus = recipe.trainer.accelerator == "cpu"
    gpus = 0 if on_cpus else slots("train", recipe, site.roles[recipe.train.role])
    held_s = sum(part.seconds for part in parts if part.name in names)
    between = _between(steps, taken)
    if between is not None:
        parts.append(between)
    whole = None if unknown else eta(parts, 1)
    return Prediction(
        seconds=None if whole is None else whole.seconds,
        half_s=None if whole is None else whole.half_s,
        parts=tuple(parts),
        unknown=unknown,
        gpu_hours=None if names & set(unknown) else held_s * gpus / 3600.0,
        num_bytes=next((one.num_bytes for one in reversed(packed) if one.num_bytes), None),
    )


def ahead_of(folder: RunFolder, steps: Sequence[StepSeen]) -> Ahead | None:
    """Return the prediction of a running run, and its rest; None without a prediction.

    The rest is left out while attempts at a step fail without progress.
    """
    prediction = read_record(folder.prediction, Prediction)
    if prediction is None:
        return None
    ahead = Ahead.of(prediction)
    if any(_is_failing(step, folder) for step in steps):
        return ahead
    suite = read_record(folder.summary, SuiteSummary)
    if suite is not None and suite.eta_s is not None:
        left: tuple[float | None, ...] = (suite.eta_s, suite.eta_error_s)
    else:
        found = left_of(prediction, steps)
        left = (None, None) if found is None else (found.seconds, found.half_s)
    return ahead.model_copy(update={"eta_s": left[0], "eta_half_s": left[1]})


def _is_failing(step: StepSeen, folder: RunFolder) -> bool:
    """Whether attempts at a step fail, and the newest one has made no progress so far."""
    if not step.failures:
        return False
    if step.name == "train":
        return newest_step(folder.checkpoints) <= step.kept
    return step.status is None or step.status.progress.done <= step.kept


def left_of(prediction: Prediction, steps: Sequence[StepSeen]) -> Eta | None:
    """Return how long a run will continue; None if the rest of a step is unknown."""
    from headrace_foresight.forecast import Running, eta

    parts = {part.name: part for part in prediction.parts}
    left = [step for step in steps if step.state is not StepState.SUCCEEDED]
    if not left or any(step.name not in parts for step in left):
        return None
    running = [step for step in left if step.elapsed_s is not None]
    waiting = [parts[step.name] for step in left if step not in running]
    if BETWEEN in parts and waiting:
        share = parts[BETWEEN].seconds * len(waiting) / len(steps)
        waiting.append(parts[BETWEEN].model_copy(update={"seconds": share}))
    under_way = [
        Running(
            forecast=parts[step.name],
            elapsed_s=step.elapsed_s or 0.0,
            done=_done(step.status),
        )
        for step in running
    ]
    return eta(waiting, 1, under_way)


def _done(status: StepStatus | None) -> float:
    progress = None if status is None else status.progress
    return 0.0 if progress is None or not progress.total else progress.done / progress.total


def part_of(
    step: PlannedStep,
    recipe: Recipe,
    site: Site,
    taken: Sequence[PastAttempt],
    *,
    anew: bool = False,
) -> PredictedPart | None:
    """Return what a step will take; None if unknown. See `known_of` for `anew`."""
    from headrace_foresight.forecast import duration_s, features_of
    from headrace_foresight.training_time import training_s

    if step.kind == SUITE:
        return _suite(step.name, recipe, site, taken)
    ranks = slots(step.kind, recipe, site.roles[step.role])
    if step.kind == "train":
        trained, known_by = training_s(recipe, [features_of(recipe, ranks)], taken, of_trials=False)
        return _named(step.name, trained[0], len(known_by)) if trained else None
    known = known_of(step.kind, recipe, taken, anew=anew)
    wanted = {"ranks": float(ranks)} if step.kind == "pack" else features_for(recipe, ranks)
    found = duration_s(known, wanted)
    return None if found is None else _named(step.name, found, len(known))


def _suite(
    name: str, recipe: Recipe, site: Site, taken: Sequence[PastAttempt]
) -> PredictedPart | None:
    from headrace_foresight.work_ahead import suite_ahead

    found, num_known = suite_ahead(recipe, site, taken)
    if found is None:
        return None
    spread = math.log1p(found.half_s / found.seconds) / NormalDist().inv_cdf(0.9)
    return PredictedPart(name=name, seconds=found.seconds, spread=spread, num_known=num_known)


def _between(steps: Sequence[PlannedStep], taken: Sequence[PastAttempt]) -> PredictedPart | None:
    """Return what runs with exactly these steps, each once, took besides their steps."""
    from headrace_foresight.forecast import duration_s

    whole = usual([one for one in taken if not one.is_trial], taken)
    by_run = grouped((one.run_id, one) for one in whole)
    known: list[tuple[Features, float]] = []
    for run in reversed(runs_of(list(by_run))):
        mine = by_run[run.run_id]
        is_plain = all(one.attempts == 1 for one in mine)
        is_whole = is_plain and {one.kind for one in mine} == {step.kind for step in steps}
        if is_whole and run.state is StepState.SUCCEEDED and run.finished_at is not None:
            rest_s = run.finished_at - run.created_at - sum(one.seconds for one in mine)
            known.append(({}, max(rest_s, 0.1)))
    found = duration_s(known, {})
    return None if found is None else _named(BETWEEN, found, len(known))


def _named(name: str, found: Forecast, num_known: int) -> PredictedPart:
    return PredictedPart(name=name, num_known=num_known, **dict(found))
