"""CSV and JSONL files whose lines are samples; their first lines tell the types of columns."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError
from headrace.objects.protocol import Check, StoredFile
from headrace.packing.listed import Coded, Listed
from headrace.packing.samples import SourceField, Unreadable
from headrace.packing.sources.arrow import field_of_type, values_of_cells
from headrace.packing.sources.arrow_columns import coded, column_of
from headrace.packing.sources.line_formats import (
    MOST_LINE_BYTES,
    CsvFormat,
    JsonLinesFormat,
    LineBlock,
    LineFormat,
)
from headrace.packing.sources.rows import Cell, ColumnOfRows, RowContainer, RowSource

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 2**22
_PATH = "path"


class _LineRows(RowContainer):
    """Lines of a file; a part is a block of them, its number the byte at which it begins."""

    def __init__(
        self, stream: BinaryIO, lines: LineFormat, start: int, roles: Mapping[str, str]
    ) -> None:
        self._stream = stream
        self._lines = lines
        self._names = tuple(lines.names)
        self._start = start
        self._roles = roles
        self._read: tuple[int, LineBlock] | None = None

    @property
    def parts(self) -> Mapping[int, int]:
        return self._listed[0]

    @property
    def types(self) -> Mapping[str, str]:
        kinds = self._lines.types
        return {name: str(kinds[name]) for name in self._names or kinds if name in kinds}

    def field(self, name: str, column: str) -> SourceField:
        if column in self._lines.nested:
            return SourceField(name, "text", encoding="json")
        return field_of_type(name, column, self._lines.types[column], lambda: None)

    def cells(self, columns: Iterable[str]) -> Mapping[str, Coded[Any]]:
        return {column: Coded.together(self._listed[1][column]) for column in columns}

    def values(self, field: SourceField, column: str, part: int, rows: Sequence[int]) -> list[Cell]:
        block = self._block(part)
        as_written = replace(field, encoding="") if column in self._lines.nested else field
        found = block.table.column(column).take(rows).combine_chunks()
        cells = values_of_cells(as_written, found)
        bad = [(at, row) for at, row in enumerate(rows) if row in block.bad]
        starts = self._line_numbers(part) if bad else []
        for at, row in bad:
            first, last = starts[row], starts[row + 1] - 1
            told = f"line {first}" if first == last else f"lines {first} to {last}"
            cells[at] = Unreadable("", f"{told}: {block.bad[row]}")
        return cells

    def columns(
        self, names: Sequence[str], part: int, rows: NDArray[np.int64]
    ) -> Iterator[ColumnOfRows | None]:
        block = self._block(part)
        tells_why = bool(block.bad) and not block.bad.keys().isdisjoint(rows.tolist())
        for name in names:
            yield None if tells_why else column_of(block.table.column(name).take(rows))

    def learn(self, *, all_lines: bool) -> None:
        """Take in the types of columns: of all lines, or of as many as tell one for each."""
        is_known = False
        for _, rows in self._blocks():
            if not is_known:
                is_known = self._lines.learn(rows)
            if all_lines:
                self._lines.block(rows)
            elif is_known:
                return

    def first(self, column: str) -> object:
        """The first cell of a column; None where there is none."""
        if column not in self.types:
            return None
        rows = next((rows for _, rows in self._blocks()), None)
        return self._lines.block(rows).table.column(column)[0].as_py() if rows else None

    def _block(self, part: int) -> LineBlock:
        if self._read is None or self._read[0] != part:
            self._read = part, self._lines.block(self._rows(part)[0])
        return self._read[1]

    @cached_property
    def _listed(self) -> tuple[dict[int, int], dict[str, list[Coded[Any]]]]:
        parts: dict[int, int] = {}
        cells: dict[str, list[Coded[Any]]] = {column: [] for column in self._roles.values()}
        for start, rows in self._blocks():
            parts[start] = len(rows)
            block = self._lines.block(rows)
            for column, found in cells.items():
                found.append(_without(coded(block.table.column(column)), block.bad))
        return parts, cells

    def _blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        start, stop = -1, self._start
        while start < stop:
            start, (rows, stop) = stop, self._rows(stop)
            if rows:
                yield start, rows

    def _rows(self, start: int) -> tuple[list[bytes], int]:
        """Whole rows from a byte on, the last with content, and the byte behind them all."""
        self._stream.seek(start)
        content = more = self._stream.read(_BLOCK_BYTES)
        rows, goes_on = self._lines.rows(content)
        while more and len(rows) == 1:
            if len(content) > MOST_LINE_BYTES:
                raise ValueError(f"the line at byte {start:,} is longer than 64 MiB")
            more = self._stream.read(_BLOCK_BYTES)
            content += more
            rows, goes_on = self._lines.rows(content)
        stop = start + len(content)
        if more and len(content) >= _BLOCK_BYTES:
            stop -= len(rows.pop())
        elif goes_on:
            line = 1 + self._breaks_before(stop - len(rows[-1]))
            raise ValueError(f"a quote that opens in line {line} does not close")
        while rows and not rows[-1].rstrip(b"\r"):
            rows.pop()
        return rows, stop

    def _line_numbers(self, part: int) -> Sequence[int]:
        """First line of each row of a part, counted from 1, and the one behind the last."""
        sizes = (row.count(b"\n") + 1 for row in self._rows(part)[0])
        return list(accumulate(sizes, initial=1 + self._breaks_before(part)))

    def _breaks_before(self, byte: int) -> int:
        self._stream.seek(0)
        return self._stream.read(byte).count(b"\n")


class _LineSource(RowSource):
    _make: type[LineFormat]

    @contextmanager
    def open_rows(self, path: str, version: str) -> Iterator[RowContainer]:
        with self._opened(path, version) as rows:
            if not self._are_types_known:
                self._learn(rows)
            yield rows

    @property
    def _are_types_known(self) -> bool:
        """Whether those of all fields are; a file may be without the lists of others."""
        import pyarrow as pa

        kinds = self._lines.types
        lists = [self._column(each.name, kinds) for each in self.fields if each.kind == "array"]
        return bool(kinds) and pa.null() not in map(kinds.get, lists)

    @cached_property
    def _lines(self) -> LineFormat:
        return self._make(self.role_columns().values(), self.told)

    def list_samples(self, check: Check | None = None) -> Listed:
        """Goes over all lines twice: first for the types that hold for all."""
        for file in self.containers(check):
            with self._opened(file.path, file.version) as rows:
                rows.learn(all_lines=True)
                self._refuse_index(file, rows)
            if check is not None:
                check()
        if not self._lines.types:
            raise DataError(f"The {self.form} files in {self._place.name} hold no row")
        told = ", ".join(f"{name} {kind}" for name, kind in self._lines.types.items())
        logger.info("Columns of %s: %s", self._place.name, told)
        return super().list_samples(check)

    def _refuse_index(self, file: StoredFile, rows: _LineRows) -> None:
        """Refuse a table that names the files of samples: their paths alone would be packed."""
        first = rows.first(_PATH)
        if not self._every or not isinstance(first, str) or not first:
            return
        folder = file.path.rpartition("/")[0]
        if self._place.store.stat(f"{folder}/{first}".lstrip("/")) is not None:
            name = file.path.rpartition("/")[2]
            raise RecipeError(
                f"The rows of {self._place.name}/{file.path} name files in their column '{_PATH}'",
                f"For these files set dataset.source to the folder of {name} and dataset.index to "
                f"{name}; for the rows themselves name the columns in dataset.fields.",
            )

    def _learn(self, rows: _LineRows) -> None:
        """On a worker: types are those of the fields, so of all files; of lists, of this one's."""
        import pyarrow as pa

        rows.learn(all_lines=False)
        for each in self.fields:
            column = self._column(each.name, rows.types)
            if each.kind == "array":
                self._lines.types.setdefault(column, pa.null())
                continue
            kind = pa.from_numpy_dtype(np.dtype(each.dtype)) if each.dtype else pa.string()
            self._lines.types[column] = kind
            (self._lines.nested.add if each.encoding else self._lines.nested.discard)(column)

    @contextmanager
    def _opened(self, path: str, version: str) -> Iterator[_LineRows]:
        import pyarrow as pa

        name = f"{self._place.name}/{path}"
        with self._place.open(path, version) as stream:
            try:
                start = self._lines.start(stream.readline(MOST_LINE_BYTES))
                yield _LineRows(stream, self._lines, start, self.role_columns())
            except (pa.ArrowException, ValueError) as error:
                raise DataError(
                    f"{name} cannot be read as a {self.form} file: {error}",
                    "Write it again, in UTF-8, each column with a name of its own.",
                ) from error


class CsvSource(_LineSource):
    """Lines of CSV files."""

    form = "csv"
    suffixes = (".csv", ".tsv")
    _make = CsvFormat


class JsonLinesSource(_LineSource):
    """Lines of JSONL files."""

    form = "jsonl"
    suffixes = (".jsonl", ".ndjson")
    _make = JsonLinesFormat


def _without(cells: Coded[Any], bad: Mapping[int, str]) -> Coded[Any]:
    """Cells of a class, group or split: lines that are no rows, and packed nowhere, get any."""
    codes = cells.codes.copy()
    good = next((row for row in range(len(codes)) if row not in bad), 0)
    codes[list(bad)] = codes[good]
    return Coded(cells.values, codes).tight()
