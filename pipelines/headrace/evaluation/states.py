"""States of metrics, taken shard by shard, and one metric of them all.

States are put together as torchmetrics does it over the processes of a training: those of a name
are stacked, or their lists joined, and given to the state's own reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean
from torchmetrics.wrappers import ClasswiseWrapper, MultioutputWrapper, MultitaskWrapper
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.errors import UserCodeError

Value = torch.Tensor | list[torch.Tensor]
State = dict[str, tuple[int, dict[str, Value]]]
"""Batches seen and values by name, of each metric inside a metric by its place; '' is itself."""

_MERGEABLE = (ClasswiseWrapper, MultioutputWrapper, MultitaskWrapper)
"""Wrappers that keep all they know in the metrics inside."""


def check_mergeable(name: str, metric: Metric) -> None:
    """Refuse a metric whose states of several shards do not give that of them all."""
    for _, each in _inside(metric):
        if isinstance(each, WrapperMetric) and not isinstance(each, _MERGEABLE):
            valid = ", ".join(known.__name__ for known in _MERGEABLE)
            raise UserCodeError(
                f"The metric '{name}' is a {type(each).__name__}, which cannot be put together "
                "from the shards of a split",
                f"Use the metric inside it. Wrappers that can: {valid}.",
            )


def state_of(name: str, metric: Metric) -> State:
    """What a metric has seen, as tensors on the CPU.

    Raises:
        UserCodeError: A state is no tensor, nor a list of them, or means do not merge.
    """
    found: State = {}
    for place, each in _inside(metric):
        values = {key: _plain(name, key, value) for key, value in each.metric_state.items()}
        for key, value in values.items():
            if each._reductions[key] is dim_zero_mean and not _is_default(each, key, value):  # noqa: SLF001
                raise UserCodeError(
                    f"The metric '{name}' keeps a mean in '{key}', which cannot be put together "
                    "from the shards of a split",
                    "Keep a sum and a count by `add_state(…, dist_reduce_fx='sum')`.",
                )
        found[place] = (each.update_count, values)
    return found


def merged(metric: Metric, states: Sequence[State]) -> Metric:
    """Give a fresh metric the states of all shards, in their order."""
    for place, each in _inside(metric):
        parts = [state[place] for state in states]
        for key in each.metric_state:
            setattr(each, key, _together(each, key, [values[key] for _, values in parts]))
        each._update_count = sum(count for count, _ in parts)  # noqa: SLF001
    return metric


def _together(metric: Metric, key: str, values: list[Value]) -> Any:
    if len(values) == 1:
        return values[0]
    reduction = metric._reductions[key]  # noqa: SLF001
    lists = [value for value in values if isinstance(value, list)]
    if lists:
        joined = [tensor for one in lists for tensor in one]
        return reduction(joined) if reduction is not None and joined else joined
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if reduction is dim_zero_cat:
        return reduction(tensors)
    stacked = torch.stack(tensors)
    return stacked if reduction is None else reduction(stacked)


def _inside(metric: Metric) -> Iterator[tuple[str, Metric]]:
    """A metric and those in it, by place."""
    return ((place, each) for place, each in metric.named_modules() if isinstance(each, Metric))


def _plain(name: str, key: str, value: object) -> Value:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, list) and all(isinstance(each, torch.Tensor) for each in value):
        return [each.detach().cpu().clone() for each in value]
    raise UserCodeError(
        f"The metric '{name}' keeps in '{key}' other things than tensors, which are not stored",
        "Keep tensors, or lists of them, by `add_state`.",
    )


def _is_default(metric: Metric, key: str, value: Value) -> bool:
    default = metric._defaults[key]  # noqa: SLF001
    return (
        isinstance(value, torch.Tensor)
        and isinstance(default, torch.Tensor)
        and torch.equal(value, default.cpu())
    )
