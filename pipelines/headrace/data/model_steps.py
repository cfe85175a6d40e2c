"""Checks that a model has what a recipe calls, as soon as the model exists."""

from __future__ import annotations

import dis
import inspect
from typing import Any

from lightning.pytorch import LightningModule

from headrace.recipe.model_source import ASKED_FOR, TEST_HOOKS, problems
from headrace.recipe.recipe import Recipe

_RETURNS = ("LOAD_CONST", "RETURN_VALUE", "RETURN_CONST")


def check_model(model: LightningModule, recipe: Recipe, *, trains: bool) -> None:
    """Raise a `RecipeError` for a method that a model lacks, or has and would not be called."""
    own = [name for name in ASKED_FOR if has_own(model, name)]
    own = [each for each in own if each not in TEST_HOOKS or not _does_nothing(model, each)]
    for error in problems(type(model).__name__, recipe, own, own.__contains__, trains=trains):
        raise error


def has_own(model: LightningModule, name: str) -> bool:
    """Whether the model has a method that is not LightningModule's."""
    found = getattr(model, name, None)
    return getattr(found, "__func__", found) is not getattr(LightningModule, name, None)


def _does_nothing(model: LightningModule, name: str) -> bool:
    """Whether a method only returns None, as one whose body is `pass`."""
    method: Any = getattr(model, name)
    if not inspect.ismethod(method):
        return False
    steps = [each for each in dis.get_instructions(method) if each.opname != "RESUME"]
    return all(each.opname in _RETURNS and each.argval is None for each in steps)
