"""What `predict_step` gave for a batch: the columns that are kept, and what metrics are given."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torchmetrics import Metric

from headrace.errors import UserCodeError, blaming_user_code
from headrace.evaluation.parts import SCORES, Column
from headrace.recipe.evaluate import EvaluateSpec

LARGEST = 1024
"""Most numbers that are kept of a sample under one name; metrics see more."""

TARGET = "target"
"""What metrics compare with; the label, where the model gives none."""


def named(found: object, num_samples: int, spec: EvaluateSpec, num_classes: int) -> dict[str, Any]:
    """Results of a batch by name: `preds`, and what else the model gave.

    Args:
        found: What `predict_step` returned.
        num_samples: Of the batch.
        spec: The recipe's `evaluate`.
        num_classes: Of the dataset; 0 when it has no classes.

    Raises:
        UserCodeError: It does not suit the task.
    """
    given = dict(found) if isinstance(found, Mapping) else {SCORES: found}
    if spec.task != "custom":
        given[SCORES] = _scores(given.get(SCORES, found), num_samples, spec.task, num_classes)
    elif not isinstance(found, Mapping | torch.Tensor):
        raise UserCodeError(
            f"predict_step gave {type(found).__name__}",
            "Return a tensor, or a mapping of what metrics take (preds, target, …) and of results "
            "by sample.",
        )
    return given


def _scores(found: object, num_samples: int, task: str, num_classes: int) -> torch.Tensor:
    """Scores of a task of headrace itself; refuses those of another shape."""
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else ()
    is_single = task in ("regression", "binary")
    if is_single:
        wanted = f"({num_samples},)"
        fits = math.prod(shape) == num_samples
    else:
        wanted = f"({num_samples}, {num_classes or 'classes'})"
        fits = shape[:1] == (num_samples,) and len(shape) == 2 and num_classes in (0, shape[1])
    if not isinstance(found, torch.Tensor) or not fits:
        got = shape if isinstance(found, torch.Tensor) else type(found).__name__
        raise UserCodeError(
            f"predict_step gave {got}, the task {task} needs a tensor {wanted}",
            "Return one score a class and sample, or set `evaluate.task`.",
        )
    return found.reshape(num_samples) if is_single else found


def kept(given: Mapping[str, Any], num_samples: int) -> dict[str, Column]:
    """The results that are numbers, vectors or texts by sample, of up to `LARGEST` numbers."""
    columns = {name: _column(value, num_samples) for name, value in given.items()}
    return {name: column for name, column in columns.items() if column is not None}


def _column(value: object, num_samples: int) -> Column | None:
    if isinstance(value, torch.Tensor):
        fits = value.ndim in (1, 2) and len(value) == num_samples
        is_small = fits and value[0].numel() <= LARGEST
        return _plain(value) if is_small else None
    if isinstance(value, list) and len(value) == num_samples:
        return value if all(isinstance(each, str) for each in value) else None
    return None


def _plain(value: torch.Tensor) -> torch.Tensor:
    """On the CPU, of a type that NumPy has."""
    plain = value.detach().cpu()
    return plain.float() if plain.is_floating_point() and plain.dtype != torch.float64 else plain


def update(metrics: Mapping[str, Metric], given: Mapping[str, Any]) -> None:
    """Show a batch to all metrics.

    Each is given what its `update` takes by name. A value under the metric's own name comes first:
    a mapping of its arguments, or its first argument.

    Raises:
        UserCodeError: It lacks an argument, or raised.
    """
    for name, metric in metrics.items():
        args, kwargs = _arguments(name, metric, given)
        try:
            inspect.signature(metric.update).bind(*args, **kwargs)
        except TypeError as error:
            raise UserCodeError(
                f"The metric '{name}' takes {_signature(metric)}, but the model gave "
                f"{', '.join(given)}: {error}",
                "Return a mapping with these names from predict_step; `target` is the label where "
                "the dataset has one.",
            ) from None
        hint = f"It was given {', '.join(given)}, of the shapes that predict_step returned."
        with blaming_user_code(f"The metric '{name}'", hint):
            metric.update(*args, **kwargs)


def _arguments(
    name: str, metric: Metric, given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    own = given.get(name)
    if isinstance(own, Mapping):
        return (), dict(own)
    if own is not None:
        return (own,), {}
    return (), metric._filter_kwargs(**given)  # noqa: SLF001


def _signature(metric: Metric) -> str:
    return str(tuple(inspect.signature(metric.update).parameters)).replace("'", "")
