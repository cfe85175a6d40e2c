"""Which module runs which kind of step; the siblings above meet only here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from headrace.errors import UnknownNameError, nearest
from headrace.steps.context import StepContext

StepFunction = Callable[[StepContext], dict[str, Any]]

_MODULES = {
    "pack": "headrace.packing.step",
    "stage": "headrace.staging.step",
    "train": "headrace.training.step",
    "evaluate": "headrace.evaluation.step",
    "probe": "headrace.probes.step",
}


def kinds() -> tuple[str, ...]:
    """Kinds of step that can be run."""
    return tuple(_MODULES)


def step_function(kind: str) -> StepFunction:
    """The function `run(context) -> outputs` of a kind of step.

    Raises:
        UnknownNameError: There is no such kind.
    """
    if kind not in _MODULES:
        raise UnknownNameError(f"There is no step of kind '{kind}'", nearest(kind, _MODULES))
    function: StepFunction = importlib.import_module(_MODULES[kind]).run
    return function
