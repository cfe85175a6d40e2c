"""The user's file: what was found out about each sample, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headrace.evaluation.parts import Column, Part
from headrace.files.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

FILE_NAME = "predictions.parquet"


def write_results(path: Path, whole: Part, sources: Sequence[str], split: str) -> None:
    """Write a row a sample, atomically; equal results give equal bytes.

    Args:
        path: The file.
        whole: The samples of the whole split.
        sources: Where each was packed from.
        split: The split, for those who put several files together.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: _array(column) for name, column in whole.columns.items()}
    own = {
        "sample_id": pa.array(whole.sample_id),
        "source": pa.array(sources, pa.string()),
        "split": pa.array([split] * len(sources), pa.string()),
    }
    buffer = BytesIO()
    parquet.write_table(pa.table({**own, **columns, **own}), buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def _array(column: Column) -> pa.Array:
    import pyarrow as pa

    if not isinstance(column, torch.Tensor):
        return pa.array([row.tolist() if isinstance(row, torch.Tensor) else row for row in column])
    if column.ndim == 1:
        return pa.array(column.numpy())
    values = pa.array(column.reshape(-1).numpy())
    return pa.FixedSizeListArray.from_arrays(values, column.shape[1])
