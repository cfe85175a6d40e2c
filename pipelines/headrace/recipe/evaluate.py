"""The part of a recipe that judges the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from headrace.recipe.base import Name, Target
from headrace.record import Record


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


_Targets = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w{0,63}$")], Target], BeforeValidator(_by_target)
]


class EvaluateSpec(Record):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    checkpoint: Literal["last", "best"] | Annotated[int, Field(ge=1)] = "last"
    """Which one is evaluated: the `last` of training, the `best` by `trainer.monitor`, or the one
    after so many optimizer steps, while it is kept."""
    batch_size: int = Field(default=512, ge=1)
    """Samples a forward pass."""
    task: Literal["multiclass", "binary", "multilabel", "regression", "custom"] = "multiclass"
    """What the model's output means, and so which metrics are built in; `custom` has none and needs
    no labels."""
    step: Literal["predict", "test"] = "predict"
    """What the model is asked: `predict_step`, or `test_step`, whose `self.log` gives metrics."""
    metrics: _Targets = {}
    """Further metrics of torchmetrics by name; those of a list are named by their class."""
    min_metrics: dict[str, float] = {}
    """The step fails when a metric is below its value here."""
    max_metrics: dict[str, float] = {}
    """The step fails when a metric is above its value here."""
    figures: _Targets = {}
    """Figures of yours by name: callables that are given the results of all samples."""

    @model_validator(mode="after")
    def _check(self) -> EvaluateSpec:
        if self.step == "test" and self.task != "custom":
            raise ValueError("evaluate.step: test goes with task: custom, the model judges itself")
        return self
