"""Parquet files, also those that Hugging Face writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from headrace.packing.samples import SourceField, Unreadable, Value
from headrace.packing.sources.arrow_values import arrow_field, arrow_values, huggingface_names
from headrace.packing.sources.containers import damaged
from headrace.packing.sources.rows import RowSource

GROUP_BYTES = 2**27
"""A column of a row group is kept in memory up to this size; a larger one is read anew, piece by
piece, whenever rows of it are wanted."""

_PIECE_BYTES = 2**22
_MOST_PIECE_ROWS = 2**14


class ParquetSource(RowSource):
    """Rows of Parquet files; columns of row groups are read whole, unless they are large."""

    form = "parquet"
    suffixes = (".parquet",)
    _kept: tuple[tuple[str, str, int], dict[str, Any]] = ("", "", -1), {}

    def _kept_of(self, part: tuple[str, str, int]) -> dict[str, Any]:
        """Columns of the row group that was read last: neighbours are often read next."""
        if self._kept[0] != part:
            self._kept = part, {}
        return self._kept[1]

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[ParquetRows]:
        """Open a Parquet file."""
        import pyarrow as pa
        from pyarrow import parquet

        name = f"{self._place.name}/{path}"
        with self._place.open(path, version) as stream:
            try:
                with parquet.ParquetFile(stream, page_checksum_verification=True) as file:
                    yield ParquetRows(
                        file, stream, lambda part: self._kept_of((path, version, part))
                    )
            except (pa.ArrowException, OSError) as error:
                raise damaged(name, "parquet", error) from error


class ParquetRows:
    """Rows of one Parquet file.

    Args:
        file: The `ParquetFile`.
        stream: What it reads.
        kept: Columns of a row group that were read before, by name; new ones are added.
    """

    def __init__(self, file: Any, stream: BinaryIO, kept: Callable[[int], dict[str, Any]]) -> None:
        self._file = file
        self._stream = stream
        self._kept = kept
        self._schema = file.schema_arrow
        self._names = huggingface_names(self._schema.metadata)

    @property
    def parts(self) -> Mapping[int, int]:
        """Rows in each row group."""
        meta = self._file.metadata
        return {index: meta.row_group(index).num_rows for index in range(meta.num_row_groups)}

    @property
    def types(self) -> Mapping[str, str]:
        """Arrow type of every column."""
        return {field.name: str(field.type) for field in self._schema}

    def num_bytes(self, columns: Iterable[str]) -> int:
        """Bytes of all rows of some columns, not compressed."""
        return sum(self._group_bytes(part, column) for column in columns for part in self.parts)

    def field(self, name: str, column: str) -> SourceField:
        """What a column holds."""
        kind = self._schema.field(column).type
        return arrow_field(name, column, kind, lambda: self._first(column))

    def cells(self, columns: Iterable[str]) -> Mapping[str, Sequence[object]]:
        """All cells of some columns."""
        table = self._file.read(columns=list(columns))
        return {column: table.column(column).to_pylist() for column in table.column_names}

    def values(
        self, field: SourceField, column: str, part: int, rows: Sequence[int]
    ) -> list[Value | Unreadable]:
        """Values of some rows of a row group."""
        if self._group_bytes(part, column) > GROUP_BYTES:
            return arrow_values(field, self._picked(column, part, rows))
        kept = self._kept(part)
        if column not in kept:
            kept[column] = self._file.read_row_group(part, columns=[column]).column(column)
        return arrow_values(field, kept[column].take(rows).combine_chunks())

    def class_names(self, column: str) -> Sequence[str]:
        """Names of the classes, where Hugging Face wrote them."""
        return self._names.get(column, [])

    def _group_bytes(self, part: int, column: str) -> int:
        """Bytes of a column of a row group, not compressed."""
        group = self._file.metadata.row_group(part)
        chunks = (group.column(number) for number in range(group.num_columns))
        return sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}.")
        )

    def _picked(self, column: str, part: int, rows: Sequence[int]) -> Any:
        """Some rows of a column of a row group, of which no more than a piece is in memory."""
        import pyarrow as pa
        from pyarrow import parquet

        wanted = np.unique(np.asarray(rows, dtype=np.int64))
        row_bytes = max(self._group_bytes(part, column) // self.parts[part], 1)
        batch_rows = max(min(_PIECE_BYTES // row_bytes, _MOST_PIECE_ROWS), 1)
        file = parquet.ParquetFile(
            self._stream,
            metadata=self._file.metadata,
            buffer_size=_PIECE_BYTES,
            page_checksum_verification=True,
        )
        batches = file.iter_batches(
            batch_rows, row_groups=[part], columns=[column], use_threads=False
        )
        pieces, start = [], 0
        for batch in batches:
            first, last = np.searchsorted(wanted, (start, start + batch.num_rows))
            if last > first:
                pieces.append(batch.column(0).take(pa.array(wanted[first:last] - start)))
            start += batch.num_rows
            if last == len(wanted):
                break
        return pa.concat_arrays(pieces).take(pa.array(np.searchsorted(wanted, rows)))

    def _first(self, column: str) -> object:
        for batch in self._file.iter_batches(batch_size=1, columns=[column]):
            return batch.column(0)[0].as_py()
        return None
