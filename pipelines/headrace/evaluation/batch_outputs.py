"""Outputs of a model for a batch: columns that are kept, inputs of metrics, logged values.

Values that `test_step` logs are aggregated by Lightning's rules for a whole epoch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import MaxMetric, MeanMetric, MinMetric, SumMetric

from headrace.errors import UserCodeError, blaming_user_code
from headrace.evaluation.merge import SCORES, Column, State, check_mergeable, state_of
from headrace.recipe.evaluate import EvaluateSpec

_BY = {"mean": MeanMetric, "sum": SumMetric, "max": MaxMetric, "min": MinMetric}
"""Metrics that aggregate numbers as `reduce_fx` says."""

_FUNCTIONS: dict[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
}
_OF_MODEL = "self"

LARGEST = 1024
"""Most numbers that are kept of a sample under a name; metrics get all."""

TARGET = "target"
"""Column that metrics compare with; the label if the model returns none."""


class Log:
    """Replaces a model's `self.log` while samples of a shard are tested."""

    def __init__(self, model: LightningModule) -> None:
        self._model = model
        self._metrics: dict[str, tuple[str, Metric]] = {}
        self.num_samples = 0
        """Of the batch that is tested."""
        for module in model.modules():
            if isinstance(module, Metric | MetricCollection):
                module.reset()
        model.__dict__["log"] = self

    def __call__(
        self,
        name: str,
        value: object,
        *_: object,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        **__: object,
    ) -> None:
        """Take one value, as `LightningModule.log` does in a test."""
        if on_epoch is False:
            return
        if isinstance(value, Metric):
            self._metric(name, self._place(name, value), value)
            return
        how = _FUNCTIONS.get(reduce_fx, reduce_fx)
        if how not in _BY:
            raise UserCodeError(
                f"self.log('{name}') has reduce_fx {how!r}", f"Valid: {', '.join(_BY)}."
            )
        number = torch.as_tensor(value, dtype=torch.float32).detach().cpu().reshape(())
        weight = (batch_size or self.num_samples,) if how == "mean" else ()
        self._metric(name, how, _of_numbers(how)).update(number, *weight)

    def states(self) -> dict[str, State]:
        """Return the states of logged values, by aggregation and name."""
        return {
            f"{how}:{name}": state_of(name, metric) for name, (how, metric) in self._metrics.items()
        }

    def _metric(self, name: str, how: str, fresh: Metric) -> Metric:
        before, metric = self._metrics.setdefault(name, (how, fresh))
        if before != how:
            raise UserCodeError(
                f"self.log('{name}') is once put together by {before}, once by {how}",
                "Give them names of their own.",
            )
        return metric

    def _place(self, name: str, metric: Metric) -> str:
        for place, each in self._model.named_modules():
            if each is metric:
                check_mergeable(name, metric)
                return f"{_OF_MODEL}.{place}"
        raise UserCodeError(
            f"self.log('{name}') got a metric that is not an attribute of the model",
            "Make it in __init__: self.accuracy = …",
        )


def logged_metrics(keys: set[str], model: LightningModule) -> Mapping[str, Metric]:
    """Return new metrics for logged values, by the key of their states."""
    return {key: _fresh(key.partition(":")[0], model) for key in sorted(keys)}


def _fresh(how: str, model: LightningModule) -> Any:
    return _of_numbers(how) if how in _BY else model.get_submodule(how.partition(".")[2])


def _of_numbers(how: str) -> Metric:
    return _BY[how](nan_strategy=float("nan"))  # NaN stays NaN


def named(found: object, num_samples: int, spec: EvaluateSpec, num_classes: int) -> dict[str, Any]:
    """Return the results of a batch by name: `preds` and other outputs of the model.

    `found` is what `predict_step` returned, `num_classes` 0 if the dataset has no classes.

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
    """Return the scores of headrace's own task; refuse those of another shape."""
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
    """Return the results that are numbers, vectors or texts, of up to `LARGEST` numbers each."""
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
    """Return a tensor on the CPU, of a type that NumPy has."""
    plain = value.detach().cpu()
    return plain.float() if plain.is_floating_point() and plain.dtype != torch.float64 else plain


def update(metrics: Mapping[str, Metric], given: Mapping[str, Any]) -> None:
    """Update all metrics with a batch.

    Each gets the arguments of its `update` by name. A value under the metric's own name comes
    first: a mapping of its arguments, or its first argument.

    Raises:
        UserCodeError: It lacks an argument, or raised.
    """
    for name, metric in metrics.items():
        args, kwargs = _arguments(name, metric, given)
        try:
            (signature := inspect.signature(metric.update)).bind(*args, **kwargs)
        except TypeError as error:
            takes = str(tuple(signature.parameters)).replace("'", "")
            raise UserCodeError(
                f"The metric '{name}' takes {takes}, but the model gave "
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
