"""The user's file: what was found out about each sample, as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headrace.evaluation.parts import Column, Part
from headrace.files.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

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
