"""The main job as data: which steps, in which order, on which kind of lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from headrace.errors import UnknownNameError, nearest
from headrace.recipe.recipe import Recipe

Outputs = Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step of a job."""

    name: str
    """Name, unique in the run."""
    kind: str
    """Entry of the step registry."""
    role: str
    """Role of the site whose lease runs it."""
    needs: tuple[tuple[str, str, str], ...] = ()
    """Inputs: `(input, step, output of that step)`."""

    def inputs(self, outputs: Mapping[str, Outputs]) -> dict[str, JsonValue]:
        """Inputs from what earlier steps gave.

        Raises:
            UnknownNameError: A step that it needs has not succeeded.
        """
        values: dict[str, JsonValue] = {}
        for name, step, output in self.needs:
            if step not in outputs:
                raise UnknownNameError(
                    f"Step '{self.name}' needs '{output}' of '{step}', which has not succeeded",
                    f"Run '{step}' first.",
                )
            values[name] = outputs[step][output]
        return values


def steps_of(recipe: Recipe, kind: str) -> tuple[PlannedStep, ...]:
    """Steps of a run in order.

    Args:
        recipe: The resolved recipe.
        kind: `train` for the main job, `pack` for packing alone.
    """
    pack = PlannedStep(name="pack", kind="pack", role=recipe.pack_role)
    if kind == "pack":
        return (pack,)
    role = recipe.train.role
    dataset = ("dataset", "pack", "dataset")
    checkpoint = ("checkpoint", "train", "checkpoint")
    steps = [
        pack,
        PlannedStep(name="stage", kind="stage", role=role, needs=(dataset,)),
        PlannedStep(name="train", kind="train", role=role, needs=(dataset,)),
    ]
    if recipe.evaluate is not None:
        needs = (dataset, checkpoint)
        steps.append(PlannedStep(name="evaluate", kind="evaluate", role=role, needs=needs))
    return tuple(steps)


def step_of(recipe: Recipe, kind: str, name: str) -> PlannedStep:
    """One step by name.

    Raises:
        UnknownNameError: The job has no such step.
    """
    steps = {step.name: step for step in steps_of(recipe, kind)}
    if name not in steps:
        raise UnknownNameError(f"This run has no step '{name}'", nearest(name, steps))
    return steps[name]
