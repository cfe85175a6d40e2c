"""Figures that the recipe names: made of the results of all samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from matplotlib.figure import Figure

from headrace.data.targets import Allowed, instantiate
from headrace.errors import UserCodeError, blaming_user_code
from headrace.evaluation.drawing import png
from headrace.evaluation.parts import Column
from headrace.recipe.evaluate import EvaluateSpec

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class OwnFigures:
    """What the recipe's figures gave, by name."""

    images: dict[str, bytes] = field(default_factory=dict)
    """PNG bytes."""
    pages: dict[str, str] = field(default_factory=dict)
    """HTML."""


def own_figures(spec: EvaluateSpec, allowed: Allowed, results: Mapping[str, Column]) -> OwnFigures:
    """Call each figure of a recipe with the results of the samples: arrays and lists by name.

    Raises:
        TargetError: One is not allowed.
        UserCodeError: One raised, or gave no figure.
    """
    found = OwnFigures()
    for name, target in spec.figures.items():
        draw = instantiate(target, allowed, f"evaluate.figures.{name}", partial=True)
        given = {key: _plain(column) for key, column in results.items()}
        hint = f"It was given a mapping of {', '.join(given)}."
        with blaming_user_code(f"The figure '{name}'", hint):
            drawn = _drawn(draw(given))
        if isinstance(drawn, bytes):
            found.images[name] = drawn
        elif isinstance(drawn, str):
            found.pages[name] = drawn
        else:
            raise UserCodeError(
                f"The figure '{name}' gave {type(drawn).__name__}",
                "Return a Figure of matplotlib, the bytes of a PNG, or HTML as text.",
            )
    return found


def _drawn(drawn: object) -> object:
    """PNG bytes of a figure of matplotlib; other things as they are."""
    if isinstance(drawn, Figure):
        return png(drawn)
    return None if isinstance(drawn, bytes) and not drawn.startswith(_PNG) else drawn


def _plain(column: Column) -> object:
    return column.numpy().copy() if isinstance(column, torch.Tensor) else list(column)
