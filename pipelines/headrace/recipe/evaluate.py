"""The part of a recipe that judges the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.recipe.base import Name, Target
from headrace.record import Record


def _by_class(metrics: object) -> object:
    """A list of targets as a mapping: each is named by its class."""
    if not isinstance(metrics, list | tuple):
        return metrics
    names = [_class_name(metric) for metric in metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"two metrics are named '{twice[0]}' by their class: "
            "write a mapping, as in {first: {_target_: …}, second: {_target_: …}}"
        )
    return dict(zip(names, metrics, strict=True))


def _class_name(metric: object) -> str:
    target = metric.get("_target_") if isinstance(metric, dict) else getattr(metric, "target", None)
    if not isinstance(target, str):
        raise ValueError("each metric of the list needs '_target_'")  # noqa: TRY004 - of pydantic
    return target.rpartition(".")[2]


class EvaluateSpec(Record):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    checkpoint: Literal["last", "best"] | Annotated[int, Field(ge=1)] = "last"
    """Which one is evaluated: the `last` of training, the `best` by `trainer.monitor`, or the one
    after so many optimizer steps, while it is kept."""
    batch_size: int = Field(default=512, ge=1)
    """Samples a forward pass."""
    task: Literal["multiclass", "regression", "custom"] = "multiclass"
    """What the model's output means, and so which metrics are built in; `custom` has none and needs
    no labels."""
    metrics: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w{0,63}$")], Target],
        BeforeValidator(_by_class),
    ] = {}
    """Further metrics of torchmetrics by name; those of a list are named by their class."""
    min_metrics: dict[str, float] = {}
    """The step fails when a metric is below its value here."""
    max_metrics: dict[str, float] = {}
    """The step fails when a metric is above its value here."""
