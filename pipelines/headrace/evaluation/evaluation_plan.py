"""What evaluation will do, one task a shard, checked before anything runs.

Light to import: the work is done by processes of their own, see `headrace.evaluation.predict`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import DataError, MetricsError, RecipeError
from headrace.files.layout import RunFolder, checkpoint_name, kept_name, run_of
from headrace.files.manifest import Manifest
from headrace.objects.store import read_manifest_at
from headrace.recipe.evaluate import EvaluateSpec
from headrace.staging.peers import PeerGroup
from headrace.steps.context import StepContext
from headrace.steps.history import History

_STEP = re.compile(r"(?:step|best|kept)-(\d+)\.ckpt")


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """Predict the samples of one shard."""

    file: str
    """Shard, relative to the dataset's folder."""
    first: int
    """Position of its first sample in the split."""
    num_samples: int
    label: str = ""
    """Name of its part among those of other variants; see `NodeTask.label`."""

    @property
    def part_name(self) -> str:
        """Name of the file with what is found out about its samples."""
        name = self.file.replace("/", "-").removesuffix(".h5") + ".pt"
        return f"{self.label}-{name}" if self.label else name


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """Task of a node: to score a shard, or to conclude without a shard."""

    step_folder: str
    env: Mapping[str, str]
    """Environment variables of the process that does it, on top of the worker's."""
    groups: Mapping[str, PeerGroup]
    """Nodes that pass shards on to each other, as each one sees them, by its name."""
    task: ShardTask | None = None
    variant: int = 0
    """Which of `EvaluateSpec.variants`."""
    checkpoint: str = ""
    """A checkpoint in place of that of the variant."""
    group: PeerGroup | None = None
    """That of `groups` which is this node's; the node that is asked fills it in."""

    @property
    def label(self) -> str:
        """What is evaluated, for the names of files; empty for the first variant."""
        words = (str(self.variant or ""), Path(self.checkpoint).stem)
        return "-".join(word for word in words if word)


def plan(manifest: Manifest, spec: EvaluateSpec) -> tuple[ShardTask, ...]:
    """Cut the split of an evaluation into tasks, in the order of the samples.

    Raises:
        ManifestError: The dataset has no such split.
        DataError: The split is empty, or the dataset has no labels that the task needs.
        RecipeError: `min_metrics` or `max_metrics` names a metric that there is not.
    """
    spec.check_bounds()
    if spec.task != "custom":
        _check_labels(manifest, spec.task)
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
    return tuple(tasks)


def _check_labels(manifest: Manifest, task: str) -> None:
    label = next((field for field in manifest.fields if field.name == "label"), None)
    if label is None:
        raise DataError(
            f"Dataset '{manifest.name}' has no labels to compare predictions with",
            "Name the column that is the label in `dataset.label_field`, or set `dataset.labels: "
            "folders`. Without labels set `evaluate: null`, or `evaluate.task: custom` where the "
            "model itself knows them.",
        )
    if task == "multilabel" and len(label.shape) != 1:
        raise DataError(
            f"Labels of dataset '{manifest.name}' are of the shape {tuple(label.shape)}, the task "
            "multilabel needs a 0 or 1 a label, (num_labels,)",
            "Set `evaluate.task` to multiclass or binary for single labels.",
        )
    if task == "binary" and len(manifest.classes) not in (0, 2):
        raise DataError(
            f"Dataset '{manifest.name}' has {len(manifest.classes)} classes, the task binary two",
            "Set `evaluate.task: multiclass`.",
        )


@dataclass(frozen=True)
class Inputs:
    """What is evaluated, and how."""

    dataset: str
    """Folder or URL of the packed dataset."""
    checkpoint: Path
    spec: EvaluateSpec


def variants_of(context: StepContext) -> tuple[EvaluateSpec, ...]:
    """What the recipe wants evaluated."""
    if context.recipe.evaluate is None:
        raise RecipeError(f"Recipe '{context.recipe.name}' has 'evaluate: null'")
    return context.recipe.evaluate.variants


def read_inputs(context: StepContext, variant: int = 0, checkpoint: str = "") -> Inputs:
    """What the step was given, for one of the variants, or for another checkpoint in its place."""
    spec = variants_of(context)[variant]
    if checkpoint:
        spec = spec.model_copy(update={"checkpoint": checkpoint})
    dataset = context.given("dataset", "pack")
    return Inputs(dataset, _checkpoint(context, spec.checkpoint), spec)


def _checkpoint(context: StepContext, wanted: int | str) -> Path:
    if wanted == "last":
        return Path(context.given("checkpoint", "train"))
    if wanted == "best":
        best = context.given("best_checkpoint", "train")
        if not best:
            raise RecipeError(
                f"No checkpoint is the best one: '{context.recipe.trainer.monitor}' was no number "
                "in any validation",
                "Look at what the model logs, or set evaluate.checkpoint: last.",
            )
        return Path(best)
    folder = context.run_folder.checkpoints
    if isinstance(wanted, str):
        places = [Path(wanted).expanduser()]
    else:
        places = [folder / name_of(wanted) for name_of in (checkpoint_name, kept_name)]
    path = next((each for each in places if each.exists()), None)
    if path is None:
        there = ", ".join(sorted(each.name for each in folder.glob("*.ckpt"))) or "none"
        raise RecipeError(
            f"evaluate.checkpoint is {wanted}, but {places[-1]} does not exist",
            f"There are: {there}. Training keeps the steps that its recipe names, if it has them.",
        )
    return path


def evaluated_step(checkpoint: Path, history: History) -> int | None:
    """Optimizer steps of a checkpoint of the run; None when that is not known."""
    match = _STEP.fullmatch(checkpoint.name)
    if match is not None:
        return int(match[1])
    return history.rows[-1].step if history.rows and checkpoint.name == "final.ckpt" else None


def trained_in(context: StepContext, checkpoint: Path) -> RunFolder:
    """The run that a checkpoint is of, where it is known; else the step's own."""
    watched = context.spec.inputs.get("watched")
    if isinstance(watched, str):
        return RunFolder(Path(watched))
    return run_of(checkpoint) or context.run_folder


def plan_evaluation(context: StepContext, inputs: Inputs, label: str = "") -> tuple[ShardTask, ...]:
    """What the step will do for one of the variants; raises what `plan` raises."""
    manifest = read_manifest_at(inputs.dataset, context.site.s3)
    tasks = plan(manifest.with_fold(context.recipe.data.fold), inputs.spec)
    return tuple(replace(task, label=label) for task in tasks)


def report_folder(context: StepContext, spec: EvaluateSpec, *, is_first: bool) -> Path:
    """Where the report of a variant lies: the first one's lies where users look for it."""
    return context.run_folder.report if is_first else context.run_folder.report / spec.label


def shortfalls(metrics: Mapping[str, float], spec: EvaluateSpec) -> tuple[str, ...]:
    """One sentence for each metric that is worse than what was asked for."""
    least = [(name, "at least", bound, 1) for name, bound in spec.min_metrics.items()]
    most = [(name, "at most", bound, -1) for name, bound in spec.max_metrics.items()]
    failures = []
    for name, word, bound, sign in sorted((*least, *most)):
        value = metrics.get(name)
        if value is None:
            failures.append(f"{name} is undefined on this split, the bound is {word} {bound:g}")
        elif sign * value < sign * bound:
            failures.append(f"{name} is {value:.6g}, the bound is {word} {bound:g}")
    return tuple(failures)


def require(metrics: Mapping[str, float], spec: EvaluateSpec, report: str) -> None:
    """Raise a `MetricsError` when a metric misses `min_metrics` or `max_metrics`."""
    missed = shortfalls(metrics, spec)
    if missed:
        raise MetricsError(
            f"The model is not as good as asked for: {'; '.join(missed)}",
            f"The report is {report}; change `evaluate.min_metrics` or `max_metrics`, or train "
            "longer or better.",
        )
