"""The part of a recipe that judges the trained model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.recipe.base import Name
from headrace.record import Record


class EvaluateSpec(Record):
    """How the trained model is judged."""

    split: Name = "test"
    """Split to evaluate on."""
    checkpoint: Literal["last", "best"] | Annotated[int, Field(ge=1)] = "last"
    """Which one is evaluated: the `last` of training, the `best` by `trainer.monitor`, or the one
    after so many optimizer steps, while it is kept."""
    batch_size: int = Field(default=512, ge=1)
    """Samples a forward pass."""
    task: Literal["multiclass", "regression"] = "multiclass"
    """What the model's output means."""
    min_metrics: dict[str, float] = {}
    """The step fails when a metric is below its value here."""
