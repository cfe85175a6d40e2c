"""HDF5 files that others wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError
from headrace.fields.field_kind import kind_named, kind_of_bytes
from headrace.packing.reading import limited
from headrace.packing.samples import Fields, SourceField, Unreadable
from headrace.packing.sources.arrow_columns import coded
from headrace.packing.sources.files import damaged
from headrace.packing.sources.row_container import Cell, ColumnOfRows, RowContainer
from headrace.packing.sources.rows import RowSource
from headrace.shards.foreign import ForeignColumn, ForeignFile


class Hdf5Source(RowSource):
    """Rows of the datasets of HDF5 files."""

    form = "hdf5"
    suffixes = (".h5", ".hdf5")
    what = "HDF5"

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> RowContainer:
        name, folder = f"{self._place.name}/{path}", self._place.folder
        file = ForeignFile(folder / path if folder else stream, name, limited)
        closing.enter_context(file)
        return _Hdf5Rows(file, name, [] if self.asked.every else self.asked.named)


class _Hdf5Rows(RowContainer):
    def __init__(self, file: ForeignFile, name: str, named: Sequence[str]) -> None:
        self._file = file
        self._name = name
        self._named = named  # datasets that the recipe names; empty for all

    @property
    def parts(self) -> Mapping[int, int]:
        wanted = [name for name in self._named if name in self._columns] or list(self._columns)
        sizes = {name: self._columns[name].num_rows for name in wanted}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {size:,}" for name, size in sorted(sizes.items()))
            raise DataError(
                f"The datasets of {self._name} have different numbers of rows: {listed}",
                "Name those that count in dataset.fields.",
            )
        return {0: next(iter(sizes.values()))} if sizes else {}

    @property
    def not_fields(self) -> Mapping[str, str]:
        return self._file.not_fields

    @property
    def types(self) -> Mapping[str, str]:
        return {
            name: f"{column.kind} of {column.dtype} with {column.ndim} axes a sample"
            for name, column in self._columns.items()
        }

    def num_bytes(self, columns: Iterable[str]) -> int:
        return sum(self._file.num_bytes(column) for column in columns)

    def field(self, name: str, column: str) -> SourceField:
        found = self._columns[column]
        if found.kind == "unknown":
            raise RecipeError(
                f"Dataset '{column}' of {self._name} is of type {found.dtype}, which cannot be "
                "packed",
                "Name the datasets that count in dataset.fields.",
            )
        if found.kind == "bytes":
            first = _as_bytes(self._file.rows(column, [0])[0]) if found.num_rows else b""
            return SourceField(name, kind_of_bytes(first).name)
        return SourceField(name, found.kind, dtype=found.dtype if found.kind == "value" else "")

    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        return {column: self._coded(column) for column in columns}

    def columns(self, fields: Fields, part: int, rows: NDArray[np.int64]) -> Iterator[ColumnOfRows]:
        for field in fields:
            is_number = field.kind in ("value", "array")
            found = self._file.numbers(field.column, rows) if is_number else None
            if found is not None:
                yield ColumnOfRows(found)
                continue
            cells: list[Any] = self._file.rows(field.column, rows.tolist())
            if field.kind == "text":
                cells = list(map(_as_text, cells))
            elif bytes in kind_named(field.kind).types:
                cells = [_as_bytes(cell) or Unreadable("", "it is empty") for cell in cells]
            yield ColumnOfRows.of(cells)

    def _coded(self, column: str) -> Any:
        import pyarrow as pa

        rows = np.arange(self._columns[column].num_rows)
        cells: Any = self._file.numbers(column, rows)
        if cells is None or cells.ndim != 1 or cells.dtype.kind == "c":
            found = list(map(_as_text, self._file.rows(column, range(len(rows)))))
            for row, cell in enumerate(found):
                if isinstance(cell, Unreadable):
                    raise damaged(self._name, "HDF5", f"row {row} of '{column}': {cell.reason}")
            cells = [cell if isinstance(cell, str) else np.asarray(cell).tolist() for cell in found]
        return coded(pa.array(cells))

    @cached_property
    def _columns(self) -> Mapping[str, ForeignColumn]:
        return self._file.columns()


def _as_text(cell: Any) -> Cell:
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError as error:
        return Unreadable("", f"not UTF-8: {error}")


def _as_bytes(cell: object) -> bytes:
    return cell.tobytes() if isinstance(cell, np.ndarray) else b""
