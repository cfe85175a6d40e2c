"""The time limit by `lifetime: auto`, out of what steps took in earlier runs; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from headrace.clusters.lease_records import Walltime
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

FLOOR_S = 600.0
"""No less is chosen, unless the queue gives no more."""

DEFAULT_S = 3600.0
"""Chosen where nothing is known of a step."""

MOST_S = 86_400.0
"""No more is chosen where neither the site nor the queue sets a limit."""

_FACTOR = 1.5
_EXTRA_S = 300.0
_ROUNDING_S = ((3600.0, 300.0), (4 * 3600.0, 900.0), (math.inf, 3600.0))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What a step of a lease is expected to take."""

    name: str
    seconds: float | None
    """Expected time; None where nothing is known."""
    num_runs: int = 0
    """Earlier runs that tell it."""


@dataclass(frozen=True, kw_only=True)
class Most:
    """The longest time that may be chosen."""

    seconds: float
    whose: str
    """Who sets it, for the user."""


def choose(
    steps: Sequence[StepTime],
    most: Most,
    start_s: float = 0.0,
    too_short_s: float | None = None,
) -> Walltime:
    """Choose the time limit of a lease that serves some steps.

    It is the sum of the steps and of the start, times 1.5 plus 5 minutes, rounded up to 5 minutes,
    15 minutes from one hour on, an hour from four on. It is twice `too_short_s` at least, the limit
    of a lease before this one in which a step came no further.
    """
    known_s = [step.seconds for step in steps if step.seconds is not None]
    needed_s = _FACTOR * (sum(known_s) + start_s) + _EXTRA_S if known_s else 0.0
    if len(known_s) < len(steps):
        needed_s = max(needed_s, DEFAULT_S)
    if too_short_s is not None:
        needed_s = max(needed_s, 2 * too_short_s)
    wanted_s = max(rounded_up(needed_s), FLOOR_S)
    why = list(_reasons(steps, start_s, too_short_s))
    if wanted_s > most.seconds:
        why.append(f"{shown(wanted_s)} is more than {most.whose}")
    seconds = min(wanted_s, most.seconds)
    return Walltime(seconds=seconds, most_s=most.seconds, why="; ".join(why))


def rounded_up(seconds: float) -> float:
    """A time rounded up to what people would write."""
    step_s = next(step_s for until_s, step_s in _ROUNDING_S if seconds <= until_s)
    return math.ceil(seconds / step_s) * step_s


def shown(seconds: float) -> str:
    """A time for people, as in `1:05:00`."""
    return str(timedelta(seconds=math.ceil(seconds)))


def _reasons(steps: Sequence[StepTime], start_s: float, too_short_s: float | None) -> Sequence[str]:
    known = [f"{each.name} {shown(each.seconds)}" for each in steps if each.seconds is not None]
    unknown = [each.name for each in steps if each.seconds is None]
    reasons = [] if steps else ["none of its steps is left to do"]
    if known:
        num_runs = max(each.num_runs for each in steps)
        start = [f"start {shown(start_s)}"] if start_s else []
        runs = "one earlier run" if num_runs == 1 else f"the slowest of {num_runs} earlier runs"
        reasons.append(f"{', '.join([*known, *start])} in {runs}, times 1.5 plus 5 minutes")
    if unknown:
        reasons.append(
            f"no earlier run tells how long {' and '.join(unknown)} will take here, for which "
            f"{shown(DEFAULT_S)} is the least"
        )
    if too_short_s is not None:
        reasons.append(f"{shown(too_short_s)} was too short for the lease before, so twice that")
    return reasons


_NUM_RUNS = 3
"""The slowest of so many counts; older ones do not."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What one run tells of one kind of step."""

    kind: str
    recipe: Recipe
    slots: int
    """Ranks that trained, or tasks that packed at once."""
    seconds: float
    """Time that the step took; of training, its attempts that came further."""
    steps: float = 0.0
    """Optimizer steps done in that time; 0 for other kinds and for scripts."""
    total_steps: float | None = None
    """Optimizer steps of the whole training; None where it is not known."""
    was_done: bool = False
    """Whether the step found its work done; such runs count only where no other tells more."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What lies before a lease."""

    recipe: Recipe
    role: Role
    kept_steps: float = 0.0
    """Optimizer steps that are in a checkpoint."""
    total_steps: float | None = None
    """Optimizer steps of the whole training; None where it has not begun."""


def expected(name: str, kind: str, work: Work, pasts: Sequence[Past]) -> StepTime:
    """What a step will take: as long as in the slowest of the newest three runs that were alike.

    A run is alike that had the same dataset, and for training and evaluation the same model or
    script. Fewer ranks or tasks than then take longer, in proportion; more are not counted on.
    Training is scaled to the samples that are left to do.

    `pasts` are of the same recipe name, site and role, the newest first.
    """
    now = slots(kind, work.recipe, work.role)
    found: dict[bool, list[float]] = {False: [], True: []}
    for past in pasts:
        is_other_suite = kind == "suite" and past.recipe.suite != work.recipe.suite
        if past.kind != kind or is_other_suite or not is_alike(kind, past.recipe, work.recipe):
            continue
        seconds = _scaled_s(past, work)
        if seconds is not None:
            found[past.was_done].append(seconds * max(1.0, past.slots / now))
    newest = (found[False] or found[True])[:_NUM_RUNS]
    return StepTime(name=name, seconds=max(newest, default=None), num_runs=len(newest))


def slots(kind: str, recipe: Recipe, role: Role) -> int:
    """Ranks that train, or tasks that pack at once."""
    if kind == "pack":
        return role.nodes * role.threads_per_node
    nodes, ranks_per_node = gang_size(recipe, role)
    return nodes * ranks_per_node


def is_alike(kind: str, past: Recipe, now: Recipe) -> bool:
    """Whether a step of one recipe tells of the other's: of the same dataset, and the same model.

    The model, function or script counts for steps that train or evaluate.
    """
    if past.dataset != now.dataset:
        return False
    return kind in ("pack", "stage") or _trained(past) == _trained(now)


def _trained(recipe: Recipe) -> tuple[object, ...]:
    made = recipe.model or recipe.train.function
    model = None if made is None else made.target
    return (model, recipe.train.script, recipe.train.args)


def _scaled_s(past: Past, work: Work) -> float | None:
    if past.kind != "train" or work.recipe.model is None:
        return past.seconds
    total = work.total_steps or _num_steps(past, work.recipe)
    if total is None:
        return None
    return step_s(past, work.recipe) * max(total - work.kept_steps, 0.0)


def step_s(past: Past, recipe: Recipe) -> float:
    """Seconds of an optimizer step of a recipe, from what its samples took in an earlier run."""
    seconds_a_sample = past.seconds / (past.steps * past.recipe.data.global_batch_size)
    return seconds_a_sample * recipe.data.global_batch_size


def _num_steps(past: Past, recipe: Recipe) -> float | None:
    """Optimizer steps that a recipe will train, from its own words and the dataset then."""
    epoch_samples = recipe.data.samples_per_epoch or _epoch_samples(past)
    limits = [float(recipe.trainer.max_steps)] if recipe.trainer.max_steps >= 0 else []
    if epoch_samples is not None:
        limits.append(epoch_samples * recipe.trainer.max_epochs / recipe.data.global_batch_size)
    return min(limits, default=None)


def _epoch_samples(past: Past) -> float | None:
    """Samples of an epoch over the whole split; None where that run did not go over all of it."""
    trainer = past.recipe.trainer
    if past.recipe.data.samples_per_epoch or trainer.max_steps >= 0 or past.total_steps is None:
        return None
    return past.total_steps * past.recipe.data.global_batch_size / trainer.max_epochs
