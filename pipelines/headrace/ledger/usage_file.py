"""Usage of attempts as a file for other programs: a row for each, at the prices of its machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Double, Integer, RowMapping

from headrace.errors import UserError
from headrace.files.atomic import AS_USUAL, replacing
from headrace.ledger.columns import Number
from headrace.ledger.usage_rows import PRICED

if TYPE_CHECKING:
    import pyarrow as pa

_ENDINGS = (".parquet", ".csv")


def write_usage(file: Path, blocks: Iterable[Sequence[RowMapping]]) -> int:
    """Write rows of usage as Parquet or CSV, by the file's suffix; return their number.

    Raises:
        UserError: The file has another ending.
    """
    if file.suffix not in _ENDINGS:
        raise UserError(
            f"Usage cannot be written as '{file.suffix}', into {file}",
            f"Give the file one of the endings {', '.join(_ENDINGS)}.",
        )
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    schema, count = _schema(), 0
    kind = pa.csv.CSVWriter if file.suffix == ".csv" else pa.parquet.ParquetWriter
    with replacing(file, AS_USUAL) as out, kind(out, schema) as writer:
        for block in blocks:
            writer.write_batch(pa.RecordBatch.from_pylist([dict(row) for row in block], schema))
            count += len(block)
    return count


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = (((Number, Double), pa.float64()), (Integer, pa.int64()))
    return pa.schema(
        (
            column.name,
            next((to for kind, to in kinds if isinstance(column.type, kind)), pa.string()),
        )
        for column in PRICED.selected_columns
    )
