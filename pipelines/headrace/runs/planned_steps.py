"""The steps of a run, their roles and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import JsonValue

from headrace.errors import UnknownNameError, nearest
from headrace.states import DRIVER_ROLE

if TYPE_CHECKING:  # lists of runs read no recipes
    from headrace.recipe.recipe import Recipe

KINDS = ("train", "pack", "evaluate", "suite", "part")
"""Kinds of runs that headrace has; other kinds have one step, which a package adds."""


Outputs = Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of a job: its name, unique in the run, its kind, and the role of its lease."""

    name: str
    kind: str
    role: str
    needs: tuple[tuple[str, str, str], ...] = ()
    """Inputs: `(input, step, output of that step)`."""

    def inputs(self, outputs: Mapping[str, Outputs]) -> dict[str, JsonValue]:
        """Return the inputs from outputs of earlier steps, which must have succeeded."""
        for _, step, output in self.needs:
            if step not in outputs:
                raise UnknownNameError(
                    f"Step '{self.name}' needs '{output}' of '{step}', which has not succeeded",
                    f"Run '{step}' first.",
                )
        return {name: outputs[step][output] for name, step, output in self.needs}


def steps_of(recipe: Recipe, kind: str) -> tuple[PlannedStep, ...]:
    """Return the steps of a run in order; `kind` is that of `RunRequest`."""
    has_data, role = recipe.dataset is not None, recipe.train.role
    pack = PlannedStep(name="pack", kind="pack", role=recipe.packing_role)
    data = (("dataset", "pack", "dataset"),) if has_data else ()
    packing = (pack,) if has_data else ()
    if kind == "pack":
        return packing
    if kind == "evaluate":
        return (PlannedStep(name="evaluate", kind="evaluate", role=role, needs=data),)
    if kind not in KINDS:
        return (PlannedStep(name=kind, kind=kind, role=role),)
    if kind == "suite" and recipe.suite is not None and recipe.suite.sites:
        return (*packing, PlannedStep(name="suite", kind="sites", role=DRIVER_ROLE, needs=data))
    if kind in ("suite", "part"):
        return (*packing, PlannedStep(name="suite", kind="suite", role=role, needs=data))
    checkpoint = ("checkpoint", "train", "checkpoint")
    best = [("best_checkpoint", "train", "best_checkpoint")] if recipe.trainer.monitor else []
    staging = PlannedStep(name="stage", kind="stage", role=role, needs=data)
    steps = [
        *((*packing, staging) if has_data else ()),
        PlannedStep(name="train", kind="train", role=role, needs=data),
    ]
    if recipe.evaluate is not None:
        needs = (*data, checkpoint, *best)
        steps.append(PlannedStep(name="evaluate", kind="evaluate", role=role, needs=needs))
    return tuple(steps)


def roles_after(recipe: Recipe, kind: str, step: PlannedStep) -> tuple[str, ...]:
    """Return other roles of later steps, whose leases may be opened already."""
    steps = steps_of(recipe, kind)
    later = steps[steps.index(step) + 1 :]
    return tuple(dict.fromkeys(each.role for each in later if each.role != step.role))


def is_last_on_lease(recipe: Recipe, kind: str, step: PlannedStep) -> bool:
    """Whether no later step uses the lease of a step."""
    steps = steps_of(recipe, kind)
    return step.role not in {each.role for each in steps[steps.index(step) + 1 :]}


def step_of(recipe: Recipe, kind: str, name: str) -> PlannedStep:
    """Return a step by its name.

    Raises:
        UnknownNameError: The run does not have it.
    """
    steps = {step.name: step for step in steps_of(recipe, kind)}
    if name not in steps:
        raise UnknownNameError(f"This run has no step '{name}'", nearest(name, steps))
    return steps[name]


def run_metrics(outputs: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """Return the last metrics of training and those of evaluation, which win by equal names."""
    given = [outputs.get(step, {}).get("metrics") for step in ("train", "evaluate")]
    return {
        name: float(value)
        for metrics in given
        for name, value in (metrics.items() if isinstance(metrics, dict) else ())
        if isinstance(value, (int, float))
    }
