"""Checks that a model has the steps that evaluation calls, as soon as the model exists."""

from __future__ import annotations

import dis
import inspect
from typing import Any

from lightning.pytorch import LightningModule

from headrace.errors import UserCodeError
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.model_source import SCORING, TEST_HOOKS, evaluation_problem

_RETURNS = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")


def check_steps(model: LightningModule, spec: EvaluateSpec | None) -> None:
    """Raise if a model lacks a step that evaluation needs; checked before training, too.

    Raises:
        UserCodeError: The step is missing, or the test cannot be divided by shards.
    """
    own = [name for name in (*SCORING, "test_step") if has_own(model, name)]
    hooks = [name for name in TEST_HOOKS if has_own(model, name)]
    own += [name for name in hooks if not _does_nothing(getattr(model, name))]
    problem = evaluation_problem(type(model).__name__, spec, own, own.__contains__)
    if problem is not None:
        raise UserCodeError(*problem)


def has_own(model: LightningModule, name: str) -> bool:
    """Whether the model overrides a method of LightningModule."""
    found = getattr(model, name)
    return getattr(found, "__func__", found) is not getattr(LightningModule, name)


def _does_nothing(method: Any) -> bool:
    """Whether a method only returns None, as one whose body is `pass`."""
    if not inspect.ismethod(method):
        return False
    steps = [each for each in dis.get_instructions(method) if each.opname != "RESUME"]
    return all(each.opname in _RETURNS and each.argval is None for each in steps)
