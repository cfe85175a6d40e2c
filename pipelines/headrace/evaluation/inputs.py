"""What the evaluate step was given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.errors import RecipeError, StepError
from headrace.evaluation.plan import EvaluationPlan, plan
from headrace.objects.store import read_manifest_at
from headrace.recipe.recipe import EvaluateSpec
from headrace.steps.context import StepContext


@dataclass(frozen=True)
class Inputs:
    """What is evaluated, and how."""

    dataset: str
    """Folder or URL of the packed dataset."""
    checkpoint: Path
    """Checkpoint with the weights."""
    spec: EvaluateSpec
    """The recipe's `evaluate`."""


def read_inputs(context: StepContext) -> Inputs:
    """Inputs of the step.

    Raises:
        RecipeError: The recipe evaluates nothing.
        StepError: An input is missing.
    """
    spec = context.recipe.evaluate
    if spec is None:
        raise RecipeError(f"Recipe '{context.recipe.name}' has 'evaluate: null'")
    given: dict[str, str] = {}
    for name, maker in (("dataset", "pack"), ("checkpoint", "train")):
        value = context.spec.inputs.get(name)
        if not isinstance(value, str):
            raise StepError(
                f"The evaluate step was given no {name}", f"Run the {maker} step first."
            )
        given[name] = value
    return Inputs(given["dataset"], Path(given["checkpoint"]), spec)


def plan_evaluation(context: StepContext, inputs: Inputs) -> EvaluationPlan:
    """What the step will do; raises what `plan` raises."""
    manifest = read_manifest_at(inputs.dataset, context.site.s3)
    return plan(manifest.with_fold(context.recipe.data.fold), inputs.spec)
