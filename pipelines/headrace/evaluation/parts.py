"""What was found out about the samples of one shard, in one file; and of all of them, each once.

A file is replaced as a whole, so a shard that is scored again counts once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import StepError
from headrace.evaluation.metrics import Predictions
from headrace.evaluation.states import State
from headrace.files.atomic import write_bytes

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
