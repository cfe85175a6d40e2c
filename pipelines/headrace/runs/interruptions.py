"""What interruptions of machines that others get back cost a training on average; pure.

Where the notice comes in time only the start is lost. Else what was done since the last checkpoint
is done again, which is half the time between two on average: an interruption comes at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.recipe.backend import Interruptions
from headrace.recipe.recipe import Recipe
from headrace.runs.walltime import shown

ASSUMED_START_S = 300.0
"""From asking for instances to a training that goes on, where no earlier run tells."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What earlier runs on the same role tell; None where they do not."""

    step_s: float | None = None
    """Seconds of an optimizer step, with what comes between steps."""
    start_s: float | None = None
    """Seconds from asking for a lease until its nodes were ready."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What interruptions of a gang cost on average."""

    steps: float
    """Optimizer steps that are done again after one."""
    start_s: float
    """Time from an interruption to a training that goes on."""
    seconds: float
    """Time that is lost by one: the start and, where their time is known, these steps."""
    per_hour: float
    """Interruptions of any of the nodes an hour."""

    @property
    def share(self) -> float:
        """Share of the time that is lost."""
        return self.per_hour * self.seconds / (3600.0 + self.per_hour * self.seconds)


def expected_loss(recipe: Recipe, nodes: int, of_one: Interruptions, pace: Pace) -> Loss:
    """Expected loss of a training on nodes whose notice does not come in time."""
    steps = 0.0 if recipe.model is None else _interval(recipe) / 2
    start_s = ASSUMED_START_S if pace.start_s is None else pace.start_s
    seconds = start_s + steps * (pace.step_s or 0.0)
    return Loss(steps=steps, start_s=start_s, seconds=seconds, per_hour=nodes * of_one.per_hour)


def loss_in_words(recipe: Recipe, nodes: int, of_one: Interruptions, pace: Pace) -> str:
    """The same in one line for the user."""
    loss = expected_loss(recipe, nodes, of_one, pace)
    start = f"a start of {shown(loss.start_s)}{' (assumed)' if pace.start_s is None else ''}"
    return (
        f"spot: an interruption costs {start} and, when its notice does not come in time, "
        f"{_again(recipe, loss, pace)}; {loss.per_hour:.2g} interruptions an hour of "
        f"{nodes} node{'s' if nodes > 1 else ''} ({of_one.source}) take "
        f"{'at least ' if pace.step_s is None else ''}{100 * loss.share:.2g} % of the time"
    )


def _again(recipe: Recipe, loss: Loss, pace: Pace) -> str:
    """What is done again after one."""
    if recipe.model is None:
        own = "script" if recipe.train.function is None else "function"
        return (
            f"half of what lies between two checkpoints of the {own}, which headrace does not know"
        )
    time = f"{shown(loss.steps * pace.step_s)}: " if pace.step_s is not None else ""
    whose = f"half of trainer.checkpoint_every_steps, {recipe.trainer.checkpoint_every_steps}"
    if _interval(recipe) < recipe.trainer.checkpoint_every_steps:
        whose = f"half of trainer.max_steps, {recipe.trainer.max_steps}: no checkpoint comes before"
    return f"{time}{loss.steps:g} steps ({whose})"


def _interval(recipe: Recipe) -> int:
    """Optimizer steps between two checkpoints; the last one is at the end."""
    every, most = recipe.trainer.checkpoint_every_steps, recipe.trainer.max_steps
    return every if most < 0 else min(every, most)
