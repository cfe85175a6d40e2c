"""What was found out about the samples of one shard, in one file; and of all of them, each once.

A file is replaced as a whole, so a shard that is scored again counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import StepError
from headrace.evaluation.metrics import Predictions
from headrace.evaluation.states import State
from headrace.files.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Ids = npt.NDArray[np.int64]
Column = torch.Tensor | list[Any]
"""A value a sample: `(num_samples, …)`, or a list of tensors or strings where they differ."""

LABEL, SCORES = "label", "preds"
"""Columns that the tasks of headrace itself judge."""

_EXAMPLES = 5


@dataclass(frozen=True)
class Part:
    """Samples and what is known of them, row by row."""

    sample_id: Ids
    """`(num_samples,) int64`."""
    columns: Mapping[str, Column]
    states: Mapping[str, State] = field(default_factory=dict)
    """What each metric has seen of these samples, by name."""

    @cached_property
    def predictions(self) -> Predictions:
        """Labels and scores of a task of headrace itself."""
        return Predictions(
            sample_id=self.sample_id,
            label=np.asarray(self.columns[LABEL]),
            scores=np.asarray(self.columns[SCORES]),
        )


def write_part(path: Path, part: Part) -> None:
    """Write a part atomically, as plain tensors."""
    buffer = BytesIO()
    torch.save({**vars(part), "sample_id": torch.from_numpy(part.sample_id)}, buffer)
    write_bytes(path, buffer.getvalue())


def read_part(path: Path) -> Part:
    """Read what `write_part` wrote; raises StepError when it is not there."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise StepError(
            f"The predictions {path} are missing", "Run the evaluation again."
        ) from None
    return Part(**{**content, "sample_id": content["sample_id"].numpy()})


def joined(columns: Sequence[Column]) -> Column:
    """One column of several, in order."""
    tensors = [column for column in columns if isinstance(column, torch.Tensor)]
    if len(tensors) == len(columns) and len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    return [row for column in columns for row in column]


def joined_columns(parts: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    """Columns of several batches or shards, in order.

    Raises:
        StepError: They are not the same in all of them.
    """
    names = list(parts[0]) if parts else []
    for part in parts:
        if list(part) != names:
            raise StepError(
                f"Some samples have the results {', '.join(names) or 'none'}, "
                f"others {', '.join(part) or 'none'}",
                "Give the same results for each batch.",
            )
    return {name: joined([part[name] for part in parts]) for name in names}


def merge(parts: Sequence[Part], expected: Ids) -> Part:
    """Put parts together in the order of the sample ids, in whatever order they come.

    Args:
        parts: Those of the shards.
        expected: `(num_samples,) int64`, ids of the samples that must be there, once each.

    Raises:
        StepError: Samples are missing, doubled or unknown; names counts and examples.
    """
    ids = np.concatenate([np.empty(0, np.int64), *(part.sample_id for part in parts)])
    _check_exactly_once(ids, expected)
    order = np.argsort(ids, kind="stable")
    columns = joined_columns([part.columns for part in parts])
    return Part(ids[order], {name: _sorted(column, order) for name, column in columns.items()})


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
    told = "; ".join(fault for fault in faults if fault)
    if told:
        raise StepError(
            f"Of {len(expected)} samples not each was predicted exactly once: {told}",
            "Run the evaluation again; if it persists, check the dataset with `headrace verify`.",
        )


def _fault(name: str, ids: Ids) -> str:
    if not len(ids):
        return ""
    examples = ", ".join(str(number) for number in ids[:_EXAMPLES])
    return f"{len(ids)} {name} (sample ids {examples}{', …' if len(ids) > _EXAMPLES else ''})"


FILE_NAME = "predictions.parquet"


def results_of(whole: Part, sources: Sequence[str], split: str) -> dict[str, Column]:
    """All that is known of each sample, by name.

    Args:
        whole: The samples of the whole split.
        sources: Where each was packed from.
        split: The split, for those who put several files together.
    """
    own: dict[str, Column] = {
        "sample_id": torch.from_numpy(whole.sample_id),
        "source": list(sources),
        "split": [split] * len(sources),
    }
    return {**own, **whole.columns, **own}


def write_results(path: Path, results: Mapping[str, Column]) -> None:
    """Write a row a sample, atomically; equal results give equal bytes."""
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
