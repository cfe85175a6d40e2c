"""What a model's `test_step` logs, shard by shard, by Lightning's rules for a whole epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torchmetrics import Metric, MetricCollection
from torchmetrics.aggregation import MaxMetric, MeanMetric, MinMetric, SumMetric

from headrace.errors import UserCodeError
from headrace.evaluation.states import State, check_mergeable, state_of

_BY = {"mean": MeanMetric, "sum": SumMetric, "max": MaxMetric, "min": MinMetric}
"""Metrics that do to numbers what `reduce_fx` says."""

_FUNCTIONS: dict[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
}
_OF_MODEL = "self"


class Log:
    """Stands in for a model's `self.log` while its samples of one shard are tested."""

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
        """What was logged: by how it is put together, and its name."""
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
            f"self.log('{name}') was given a metric that is no attribute of the model",
            "Make it in __init__: self.accuracy = …",
        )


def logged_metrics(keys: set[str], model: LightningModule) -> Mapping[str, Metric]:
    """Fresh metrics for what was logged, by the key of their states."""
    return {key: _fresh(key.partition(":")[0], model) for key in sorted(keys)}


def _fresh(how: str, model: LightningModule) -> Any:
    return _of_numbers(how) if how in _BY else model.get_submodule(how.partition(".")[2])


def _of_numbers(how: str) -> Metric:
    return _BY[how](nan_strategy=float("nan"))  # NaN stays NaN
