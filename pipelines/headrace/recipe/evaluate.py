"""The part of a recipe that judges the trained model."""

from __future__ import annotations

import hashlib
import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from headrace.errors import RecipeError, nearest
from headrace.recipe.base import MAX_COUNT, Count, Name, Number, Place, Problems, Settings, Target


def _by_target(metrics: object) -> object:
    """A list of targets as a mapping: each is named by its class or function."""
    if not isinstance(metrics, list | tuple):
        return metrics
    names = [_class_name(metric) for metric in metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two of them are named '{twice[0]}' by their target: "
            "write a mapping, as in {first: {_target_: …}, second: {_target_: …}}"
        )
    return dict(zip(names, metrics, strict=True))


def _class_name(metric: object) -> str:
    target = metric.get("_target_") if isinstance(metric, dict) else getattr(metric, "target", None)
    if not isinstance(target, str):
        raise ValueError("each one of the list needs '_target_'")  # noqa: TRY004 - of pydantic
    return target.rpartition(".")[2]


_OF_LABELS = ("accuracy", "precision", "recall", "f1", "auroc", "average_precision")
_HIGHER_IS_BETTER = {
    "multiclass": ("accuracy", "precision", "recall", "f1", "auroc"),
    "binary": _OF_LABELS,
    "multilabel": (*_OF_LABELS, "exact_match"),
    "regression": ("r2",),
}
"""Metrics of each task that `evaluate.min_metrics` may name."""

_LOWER_IS_BETTER = {
    "multiclass": ("calibration_error",),
    "binary": ("calibration_error",),
    "regression": ("mae", "rmse"),
}
"""Metrics of each task that `evaluate.max_metrics` may name."""


BETTER_WHEN = {
    **dict.fromkeys(chain(("loss", "val_loss"), *_LOWER_IS_BETTER.values()), "min"),
    **dict.fromkeys(chain(*_HIGHER_IS_BETTER.values()), "max"),
}
"""Whether lower (`min`) or higher (`max`) values of a built-in metric are better."""

_MetricName = Annotated[str, Field(pattern=r"^[A-Za-z]\w*$", max_length=64)]
_Targets = Annotated[dict[_MetricName, Target], BeforeValidator(_by_target)]


def _of_a_kind(checkpoint: int | str) -> int | str:
    if isinstance(checkpoint, int):
        if not 1 <= checkpoint <= MAX_COUNT:
            raise ValueError(f"optimizer steps are counted from 1 to {MAX_COUNT:,}")
    elif checkpoint not in ("last", "best") and ("/" not in checkpoint or "://" in checkpoint):
        raise ValueError("valid: last, best, a number of optimizer steps, or the path of a file")
    return checkpoint


_Checkpoint = Annotated[int | Place, AfterValidator(_of_a_kind)]


class EvaluateSpec(Settings):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    checkpoint: _Checkpoint = "last"
    """Which one is evaluated: the `last` of training, the `best` by `trainer.monitor`, the one
    after so many optimizer steps, which is kept for that, or a file by its path, `./mine.ckpt`."""
    also_splits: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Further splits; each with each checkpoint has a report of its own."""
    also_checkpoints: Annotated[tuple[_Checkpoint, ...], Field(max_length=1000)] = ()
    """Further checkpoints, in the same way. Only those of `split` and `checkpoint` are held to
    `min_metrics` and `max_metrics`."""
    batch_size: Count = 512
    """Samples a forward pass."""
    task: Literal["multiclass", "binary", "multilabel", "regression", "custom"] = "multiclass"
    """What the model's output means, and so which metrics are built in; `custom` has none and needs
    no labels."""
    step: Literal["predict", "test"] = "predict"
    """What the model is asked: `predict_step`, or `test_step`, whose `self.log` gives metrics."""
    metrics: _Targets = {}
    """Further metrics of torchmetrics by name; those of a list are named by their class."""
    min_metrics: dict[str, Number] = {}
    """The step fails when a metric is below its value here."""
    max_metrics: dict[str, Number] = {}
    """The step fails when a metric is above its value here."""
    figures: _Targets = {}
    """Figures of yours by name: callables that are given the results of all samples."""

    def problems(self) -> Problems:
        """Yield keys that contradict each other, and what is named twice."""
        if self.step == "test" and self.task != "custom":
            yield "evaluate.step: test goes with task: custom, the model judges itself"
        for key, given in (
            ("also_splits", (self.split, *self.also_splits)),
            ("also_checkpoints", self.checkpoints),
        ):
            twice = sorted({str(each) for each in given if given.count(each) > 1})
            if twice:
                yield f"{key} has {', '.join(twice)} again: leave it out there"

    def check_bounds(self) -> None:
        """Raise RecipeError for bounds of metrics that do not exist, and names the task has."""
        higher = _HIGHER_IS_BETTER.get(self.task, ())
        lower = _LOWER_IS_BETTER.get(self.task, ())
        for name in self.metrics:
            if name in (*higher, *lower):
                raise RecipeError(
                    f"evaluate.metrics has '{name}', which the task {self.task} has itself",
                    "Give it another name.",
                )
        for key, bounds, valid, word in (
            ("min_metrics", self.min_metrics, higher, "higher"),
            ("max_metrics", self.max_metrics, lower, "lower"),
        ):
            for name in bounds:
                is_own = self.step == "test" or name.partition(".")[0] in self.metrics
                if name not in valid and not is_own:
                    raise RecipeError(
                        f"evaluate.{key} names '{name}', which is not a metric of the task "
                        f"{self.task} that is better when it is {word}, nor one of "
                        "evaluate.metrics",
                        nearest(name, (*valid, *self.metrics)),
                    )

    @property
    def variants(self) -> tuple[EvaluateSpec, ...]:
        """An evaluation for each checkpoint and split; the first is that of the metrics."""
        alone: dict[str, object] = {"also_splits": (), "also_checkpoints": ()}
        unbound: dict[str, object] = {"min_metrics": {}, "max_metrics": {}}
        first, *others = (
            self.model_copy(update={**alone, "checkpoint": checkpoint, "split": split})
            for checkpoint in self.checkpoints
            for split in (self.split, *self.also_splits)
        )
        return (first, *(each.model_copy(update=unbound) for each in others))

    @property
    def checkpoints(self) -> tuple[int | str, ...]:
        """All that are evaluated."""
        return self.checkpoint, *self.also_checkpoints

    @property
    def steps(self) -> frozenset[int]:
        """Those that are named by optimizer steps: training keeps them."""
        return frozenset(each for each in self.checkpoints if isinstance(each, int))

    @property
    def files(self) -> tuple[str, ...]:
        """Those that are named by a path."""
        return tuple(each for each in self.checkpoints if isinstance(each, str) and "/" in each)

    @property
    def label(self) -> str:
        """Name of the variant, for files."""
        if not self.files:
            return f"{self.split}-{self.checkpoint}"
        (file,) = self.files
        name = re.sub(r"[^-.\w]", "_", Path(file).stem)
        place = hashlib.blake2b(file.encode(), digest_size=3).hexdigest()
        return f"{self.split}-{name}-{place}"
