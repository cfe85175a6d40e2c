"""Checks that a model has the steps that evaluation calls, as soon as the model exists."""

from __future__ import annotations

from lightning.pytorch import LightningModule

from headrace.errors import UserCodeError
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.model_source import SCORING, TEST_HOOKS, evaluation_problem


def check_steps(model: LightningModule, spec: EvaluateSpec | None) -> None:
    """Raise if a model lacks a step that evaluation needs; checked before training, too.

    Raises:
        UserCodeError: The step is missing, or the test cannot be divided by shards.
    """
    own = [name for name in (*SCORING, *TEST_HOOKS, "test_step") if _has(model, name)]
    problem = evaluation_problem(type(model).__name__, spec, own, own.__contains__)
    if problem is not None:
        raise UserCodeError(*problem)


def _has(model: LightningModule, name: str) -> bool:
    """Whether the model overrides a method of LightningModule."""
    found = getattr(model, name)
    return getattr(found, "__func__", found) is not getattr(LightningModule, name)
