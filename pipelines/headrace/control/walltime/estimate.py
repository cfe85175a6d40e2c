"""What a step will take, out of what it took in earlier runs; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.control.walltime.choice import StepTime
from headrace.recipe.fit import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role

_NUM_RUNS = 3
"""The slowest of so many counts; older ones do not."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """What one run tells of one kind of step."""

    kind: str
    """Kind of the step."""
    recipe: Recipe
    """Recipe of that run."""
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
    """The resolved recipe."""
    role: Role
    """The lease's role."""
    kept_steps: float = 0.0
    """Optimizer steps that are in a checkpoint."""
    total_steps: float | None = None
    """Optimizer steps of the whole training; None where it has not begun."""


def expected(name: str, kind: str, work: Work, pasts: Sequence[Past]) -> StepTime:
    """What a step will take: as long as in the slowest of the newest three runs that were alike.

    A run is alike that had the same dataset, and for training and evaluation the same model or
    script. Fewer ranks or tasks than then take longer, in proportion; more are not counted on.
    Training is scaled to the samples that are left to do.

    Args:
        name: Name of the step.
        kind: Its kind.
        work: What lies before the lease.
        pasts: What earlier runs of the same recipe name, site and role tell, the newest first.
    """
    now = slots(kind, work.recipe, work.role)
    found: dict[bool, list[float]] = {False: [], True: []}
    for past in pasts:
        if past.kind != kind or not _is_alike(kind, past.recipe, work.recipe):
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


def _is_alike(kind: str, past: Recipe, now: Recipe) -> bool:
    if past.dataset != now.dataset:
        return False
    if kind not in ("train", "evaluate"):
        return True
    return _trained(past) == _trained(now)


def _trained(recipe: Recipe) -> tuple[object, ...]:
    model = None if recipe.model is None else recipe.model.target
    return (model, recipe.train.script, recipe.train.args)


def _scaled_s(past: Past, work: Work) -> float | None:
    if past.kind != "train" or work.recipe.train.script is not None:
        return past.seconds
    total = work.total_steps or _num_steps(past, work.recipe)
    if total is None:
        return None
    samples = max(total - work.kept_steps, 0.0) * _batch(work.recipe)
    return past.seconds / (past.steps * _batch(past.recipe)) * samples


def _num_steps(past: Past, recipe: Recipe) -> float | None:
    """Optimizer steps that a recipe will train, from its own words and the dataset then."""
    epoch_samples = recipe.data.samples_per_epoch or _epoch_samples(past)
    limits = [float(recipe.trainer.max_steps)] if recipe.trainer.max_steps >= 0 else []
    if epoch_samples is not None:
        limits.append(epoch_samples * recipe.trainer.max_epochs / _batch(recipe))
    return min(limits, default=None)


def _epoch_samples(past: Past) -> float | None:
    """Samples of an epoch over the whole split; None where that run did not go over all of it."""
    trainer = past.recipe.trainer
    if past.recipe.data.samples_per_epoch or trainer.max_steps >= 0 or past.total_steps is None:
        return None
    return past.total_steps * _batch(past.recipe) / trainer.max_epochs


def _batch(recipe: Recipe) -> int:
    """Samples of an optimizer step."""
    return recipe.data.global_batch_size * recipe.trainer.accumulate_grad_batches
