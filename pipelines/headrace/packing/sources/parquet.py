"""Parquet files, also those that Hugging Face writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.packing.samples import SourceField, Unreadable, Value
from headrace.packing.sources.arrow_values import arrow_field, arrow_values, huggingface_names
from headrace.packing.sources.containers import damaged
from headrace.packing.sources.rows import RowSource


class ParquetSource(RowSource):
    """Rows of Parquet files; row groups are read whole."""

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
                    yield ParquetRows(file, lambda part: self._kept_of((path, version, part)))
            except (pa.ArrowException, OSError) as error:
                raise damaged(name, "parquet", error) from error


class ParquetRows:
    """Rows of one Parquet file.

    Args:
        file: The `ParquetFile`.
        kept: Columns of a row group that were read before, by name; new ones are added.
    """

    def __init__(self, file: Any, kept: Callable[[int], dict[str, Any]]) -> None:
        self._file = file
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
        kept = self._kept(part)
        if column not in kept:
            kept[column] = self._file.read_row_group(part, columns=[column]).column(column)
        return arrow_values(field, kept[column].take(rows).combine_chunks())

    def class_names(self, column: str) -> Sequence[str]:
        """Names of the classes, where Hugging Face wrote them."""
        return self._names.get(column, [])

    def _first(self, column: str) -> object:
        for batch in self._file.iter_batches(batch_size=1, columns=[column]):
            return batch.column(0)[0].as_py()
        return None
