"""Checks that a model has the steps that evaluation calls, as soon as the model exists."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from headrace.errors import UserCodeError
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.model_source import (
    SCORING,
    TEST_HOOKS,
    with_hook,
    without_scores,
    without_test,
)


def check_steps(model: LightningModule, spec: EvaluateSpec | None) -> None:
    """Raise if a model lacks a step that evaluation needs; checked before training, too.

    Raises:
        UserCodeError: The step is missing, or the test cannot be divided by shards.
    """
    name = type(model).__name__
    if spec is None:
        return
    if spec.step == "predict":
        if not any(_has(model, step) for step in SCORING):
            raise UserCodeError(*without_scores(name, has_test=_has(model, "test_step")))
        return
    for hook in TEST_HOOKS:
        if _has(model, hook):
            raise UserCodeError(*with_hook(name, hook))
    if not _has(model, "test_step"):
        raise UserCodeError(*without_test(name))


def _has(model: LightningModule, name: str) -> bool:
    """Whether the model overrides a method of LightningModule."""
    found = getattr(model, name)
    return getattr(found, "__func__", found) is not getattr(LightningModule, name)
