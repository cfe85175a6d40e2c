"""How a model computes, not what: compiled, in another layout, in less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headrace.errors import RecipeError, nearest
from headrace.recipe.train import TrainerSpec


def form(model: nn.Module, spec: TrainerSpec) -> None:
    """Have a model compute as a recipe wants; names of weights stay as they are.

    Raises:
        RecipeError: No module has a class that the recipe names.
    """
    if spec.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    names = spec.activation_checkpointing
    for module in of_classes(model, names, "trainer.activation_checkpointing"):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    if spec.compile is not False:
        options: dict[str, Any] = spec.compile if isinstance(spec.compile, dict) else {}
        for module in parts_of(model):
            module.compile(**options)


def of_classes(model: nn.Module, names: Sequence[str], key: str) -> list[nn.Module]:
    """Modules whose classes have these names, outer ones first; errors as `form`."""
    known = {type(module).__name__ for module in model.modules()}
    for name in names:
        if name not in known:
            raise RecipeError(
                f"{key} names {name}, and no module of the model is one", nearest(name, known)
            )
    return [module for module in model.modules() if type(module).__name__ in names]


def parts_of(model: nn.Module) -> Iterator[nn.Module]:
    """What the model calls, if it has weights; lists of modules are not called."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from parts_of(child)
        elif any(True for _ in child.parameters()):
            yield child
