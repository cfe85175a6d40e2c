"""The main job as data: which steps, on which kind of lease, and for which datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from headrace.errors import DataError, UnknownNameError, UserError, nearest
from headrace.recipe.arguments import is_as_here
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import StepState
from headrace.steps.mailbox import StepResult
from headrace.steps.run import failure_of

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
        """Inputs from what earlier steps gave.

        Raises:
            UnknownNameError: A step that it needs has not succeeded.
        """
        for _, step, output in self.needs:
            if step not in outputs:
                raise UnknownNameError(
                    f"Step '{self.name}' needs '{output}' of '{step}', which has not succeeded",
                    f"Run '{step}' first.",
                )
        return {name: outputs[step][output] for name, step, output in self.needs}


def steps_of(recipe: Recipe, kind: str) -> tuple[PlannedStep, ...]:
    """Steps of a run in order; its kind is `train`, the main job, or `pack`, packing alone."""
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


def check_stores(recipe: Recipe, site: Site) -> None:
    """Refuse object stores whose package is missing; nodes with their own packages may have it.

    Raises:
        UserError: A package is missing; names the extra that brings it.
    """
    from headrace.objects.store import check_package

    if is_as_here(site.roles[recipe.pack_role]):
        for url in (recipe.dataset.source, recipe.dataset.path, recipe.pack.target):
            if url is not None:
                check_package(url)


def check_dataset(recipe: Recipe, site: Site, dataset: str | None) -> None:
    """Refuse a dataset that has too few samples, no labels or not the splits that a recipe needs.

    Only a manifest that is seen from here tells: not one in S3, nor one on the nodes' own disks.

    None stands for a dataset that is still to be packed.

    Raises:
        UserError: Ranks, batches or metrics do not fit it.
        DataError: It lacks a split or its labels, or its manifest is damaged.
    """
    if dataset is None or recipe.model is None:
        return
    # they bring numpy and xxhash, and Airflow parses this module
    from headrace.evaluation.plan import plan as plan_evaluation
    from headrace.files.manifest_file import FILE_NAME, read_manifest
    from headrace.training.plan import plan_training

    folder = Path(dataset).expanduser()
    if not (folder / FILE_NAME).is_file():
        return
    manifest = read_manifest(folder)
    plan_training(recipe, site.roles[recipe.train.role], manifest)
    if recipe.evaluate is not None:
        plan_evaluation(manifest.with_fold(recipe.data.fold), recipe.evaluate)


def judged(recipe: Recipe, site: Site, packed: StepResult) -> StepResult:
    """The result of packing: a failure where the rest of the run cannot come to an end with it."""
    dataset = packed.outputs.get("dataset")
    try:
        check_dataset(recipe, site, dataset if isinstance(dataset, str) else None)
    except (UserError, DataError) as error:
        kind = type(error)
        told = kind(f"{dataset} is packed, but the run cannot go on: {error.what}", error.hint)
        return packed.model_copy(update={"state": StepState.FAILED, "failure": failure_of(told)})
    return packed
