"""What is known of the samples of shards, put together so that each sample counts once.

A file holds what was found out about one shard. It is replaced as a whole, so a shard that is
scored again counts once. States of metrics are put together as torchmetrics does it over the
processes of a training: those of a name are stacked, or their lists joined, and given to the
state's own reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean
from torchmetrics.wrappers import ClasswiseWrapper, MultioutputWrapper, MultitaskWrapper
from torchmetrics.wrappers.abstract import WrapperMetric

from headrace.errors import StepError, UserCodeError
from headrace.evaluation.metrics import Predictions
from headrace.files.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Ids = npt.NDArray[np.int64]
Column = torch.Tensor | list[Any]
"""A value per sample: `(num_samples, …)`, or a list of tensors or strings if shapes differ."""

LABEL, SCORES = "label", "preds"
"""Columns for headrace's own tasks."""

_EXAMPLES = 5

Value = torch.Tensor | list[torch.Tensor]
State = dict[str, tuple[int, dict[str, Value]]]
"""Number of batches and values by name, for each metric inside a metric; '' is itself."""

_MERGEABLE = (ClasswiseWrapper, MultioutputWrapper, MultitaskWrapper)
"""Wrappers that keep all of their state in the metrics inside."""


@dataclass(frozen=True)
class ScoredSamples:
    """Samples and their results, row by row."""

    sample_id: Ids
    """`(num_samples,) int64`."""
    columns: Mapping[str, Column]
    states: Mapping[str, State] = field(default_factory=dict)
    """State of each metric after these samples, by name."""

    @cached_property
    def predictions(self) -> Predictions:
        """Labels and scores of headrace's own task."""
        return Predictions(
            sample_id=self.sample_id,
            label=np.asarray(self.columns[LABEL]),
            scores=np.asarray(self.columns[SCORES]),
        )


def write_part(path: Path, part: ScoredSamples) -> None:
    """Write a part atomically, as plain tensors."""
    buffer = BytesIO()
    torch.save({**vars(part), "sample_id": torch.from_numpy(part.sample_id)}, buffer)
    write_bytes(path, buffer.getvalue())


def read_part(path: Path) -> ScoredSamples:
    """Read a part of `write_part`; raise a StepError if it does not exist."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise StepError(
            f"The predictions {path} are missing", "Run the evaluation again."
        ) from None
    return ScoredSamples(**{**content, "sample_id": content["sample_id"].numpy()})


def joined(columns: Sequence[Column]) -> Column:
    """Return one column of several, in order."""
    tensors = [column for column in columns if isinstance(column, torch.Tensor)]
    if len(tensors) == len(columns) and len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    return [row for column in columns for row in column]


def joined_columns(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Return the columns of several batches or shards, in order; `StepError` if they differ."""
    names = list(parts[0]) if parts else []
    for part in parts:
        if list(part) != names:
            raise StepError(
                f"Some samples have the results {', '.join(names) or 'none'}, "
                f"others {', '.join(part) or 'none'}",
                "Give the same results for each batch.",
            )
    return {name: joined([part[name] for part in parts]) for name in names}


def merge(parts: Sequence[ScoredSamples], expected: Ids) -> ScoredSamples:
    """Merge parts of any order to the order of the sample ids, each of `expected` once.

    Raises:
        StepError: Samples are missing, doubled or unknown; names counts and examples.
    """
    ids = np.concatenate([np.empty(0, np.int64), *(part.sample_id for part in parts)])
    _check_exactly_once(ids, expected)
    order = np.argsort(ids, kind="stable")
    columns = joined_columns([part.columns for part in parts])
    return ScoredSamples(
        ids[order], {name: _sorted(column, order) for name, column in columns.items()}
    )


def _sorted(column: Column, order: Ids) -> Column:
    if isinstance(column, torch.Tensor):
        return column[torch.from_numpy(order)]
    return [column[place] for place in order.tolist()]


def _check_exactly_once(found: Ids, expected: Ids) -> None:
    ids, counts = np.unique(found, return_counts=True)
    faults = [
        _fault("missing", np.setdiff1d(expected, ids)),
        _fault("counted more than once", ids[counts > 1]),
        _fault("not of this split", np.setdiff1d(ids, expected)),
    ]
    problems = "; ".join(fault for fault in faults if fault)
    if problems:
        raise StepError(
            f"Not all of {len(expected)} samples were predicted exactly once: {problems}",
            "Run the evaluation again; if it persists, check the dataset with `headrace verify`.",
        )


def _fault(name: str, ids: Ids) -> str:
    if not len(ids):
        return ""
    examples = ", ".join(str(number) for number in ids[:_EXAMPLES])
    return f"{len(ids)} {name} (sample ids {examples}{', …' if len(ids) > _EXAMPLES else ''})"


FILE_NAME = "predictions.parquet"


def results_of(whole: ScoredSamples, sources: Sequence[str], split: str) -> dict[str, Column]:
    """Return all results of each sample, by name, with its source and the name of the split."""
    own: dict[str, Column] = {
        "sample_id": torch.from_numpy(whole.sample_id),
        "source": list(sources),
        "split": [split] * len(sources),
    }
    return {**own, **whole.columns, **own}


def write_results(path: Path, results: Mapping[str, Column]) -> None:
    """Write a row per sample, atomically; equal results give equal bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    buffer = BytesIO()
    table = pa.table({name: _array(column) for name, column in results.items()})
    parquet.write_table(table, buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def _array(column: Column) -> pa.Array:
    import pyarrow as pa

    if not isinstance(column, torch.Tensor):
        return pa.array([row.tolist() if isinstance(row, torch.Tensor) else row for row in column])
    if column.ndim == 1:
        return pa.array(column.numpy())
    values = pa.array(column.reshape(-1).numpy())
    return pa.FixedSizeListArray.from_arrays(values, column.shape[1])


def check_mergeable(name: str, metric: Metric) -> None:
    """Refuse a metric whose states of several shards cannot be merged."""
    for _, each in _inside(metric):
        if isinstance(each, WrapperMetric) and not isinstance(each, _MERGEABLE):
            valid = ", ".join(known.__name__ for known in _MERGEABLE)
            raise UserCodeError(
                f"The metric '{name}' is a {type(each).__name__}, which cannot be put together "
                "from the shards of a split",
                f"Use the metric inside it. Wrappers that can: {valid}.",
            )


def state_of(name: str, metric: Metric) -> State:
    """Return the state of a metric, as tensors on the CPU.

    Raises:
        UserCodeError: A state is not a tensor or a list of tensors, or means do not merge.
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
    """Set a new metric to the states of all shards, in their order."""
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
    """Yield a metric and the metrics in it, by place."""
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
