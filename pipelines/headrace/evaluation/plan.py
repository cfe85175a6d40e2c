"""What evaluation will do: one task a shard, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import DataError, RecipeError, nearest
from headrace.files.manifest import Manifest
from headrace.recipe.recipe import EvaluateSpec

HIGHER_IS_BETTER = {
    "multiclass": ("accuracy", "precision", "recall", "f1", "auroc"),
    "regression": ("r2",),
}
"""Metrics of each task that `evaluate.min_metrics` may name."""


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Predict the samples of one shard."""

    file: str
    """Shard, relative to the dataset's folder."""
    first: int
    """Position of its first sample in the split."""
    num_samples: int
    """Samples in it."""

    @property
    def part_name(self) -> str:
        """Name of the file with its predictions."""
        return self.file.replace("/", "-").removesuffix(".h5") + ".npz"


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """All tasks of an evaluation."""

    split: str
    """Split to evaluate."""
    tasks: tuple[ShardTask, ...]
    """One a shard, in the order of the samples."""

    @property
    def num_samples(self) -> int:
        """Samples in all tasks."""
        return sum(task.num_samples for task in self.tasks)


def plan(manifest: Manifest, spec: EvaluateSpec) -> EvaluationPlan:
    """Cut the split of an evaluation into tasks.

    Args:
        manifest: The dataset.
        spec: What is asked for.

    Raises:
        ManifestError: The dataset has no such split.
        DataError: The split is empty, or the dataset has no labels.
        RecipeError: `min_metrics` names a metric that the task does not have.
    """
    _check_min_metrics(spec)
    if all(field.name != "label" for field in manifest.fields):
        raise DataError(
            f"Dataset '{manifest.name}' has no labels to compare predictions with",
            "Pack it with `dataset.labels: folders` or `index`, or set `evaluate: null`.",
        )
    tasks: list[ShardTask] = []
    first = 0
    for shard in manifest.shards_of(spec.split):
        tasks.append(ShardTask(file=shard.file, first=first, num_samples=shard.num_samples))
        first += shard.num_samples
    if first == 0:
        raise DataError(
            f"Split '{spec.split}' of dataset '{manifest.name}' is empty",
            "Give it a larger share in `dataset.splits`, or evaluate another split.",
        )
    return EvaluationPlan(split=spec.split, tasks=tuple(tasks))


def _check_min_metrics(spec: EvaluateSpec) -> None:
    valid = HIGHER_IS_BETTER[spec.task]
    for name in spec.min_metrics:
        if name not in valid:
            raise RecipeError(
                f"evaluate.min_metrics names '{name}', which is no metric of the task "
                f"{spec.task} that is better when it is higher",
                nearest(name, valid),
            )
