"""Rows of CSV, JSONL and Parquet index files, and how to find single rows again."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, Protocol

from headrace.errors import DataError, RecipeError
from headrace.packing.sources.columns import Cell
from headrace.packing.sources.place import Piece, Place
from headrace.storage.store import StoredFile

SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Endings of index files."""

Row = Mapping[str, object]
_GAP_BYTES = 64 * 2**10
_SPAN_BYTES = 16 * 2**20


class IndexFile(Protocol):
    """Rows of an index file."""

    path: str
    """The file, below the source."""
    name: str
    """Where it lies, for messages."""
    num_where: int
    """Numbers that find a row again."""

    def columns(self) -> list[str]:
        """Names of the columns of a file without rows."""
        ...

    def rows(self) -> Iterator[tuple[int, Row, tuple[int, ...]]]:
        """Line, cells by column and place of every row.

        Raises:
            DataError: A row cannot be used.
        """
        ...

    def again(self, places: Sequence[tuple[int, ...]]) -> list[Row]:
        """The rows at places."""
        ...


def open_index(place: Place, file: StoredFile) -> IndexFile:
    """The rows of an index file, by the ending of its name."""
    suffix = PurePosixPath(file.path).suffix.lower()
    if suffix == ".parquet":
        return ParquetIndex(place, file)
    return CsvIndex(place, file) if suffix == ".csv" else JsonlIndex(place, file)


class _File:
    def __init__(self, place: Place, file: StoredFile) -> None:
        self.path = file.path
        self.name = f"{place.name}/{file.path}"
        self._place = place
        self._version = file.version


class _Lines(_File):
    """A text file whose rows are found again by where they begin and their bytes."""

    num_where = 2

    def _texts(self, places: Sequence[tuple[int, ...]]) -> list[bytes]:
        """Bytes at (start, size), read in the file's order; neighbours at once."""
        found: dict[tuple[int, ...], bytes] = {}
        spans = list(_spans(sorted(set(places))))
        pieces = [Piece(self.path, self._version, start, size) for start, size, _ in spans]
        for (start, _, members), content in zip(
            spans, self._place.read_pieces(pieces), strict=True
        ):
            for at, size in members:
                found[at, size] = content[at - start : at - start + size]
        return [found[place] for place in places]


class CsvIndex(_Lines):
    """Rows of a CSV file; cells that look like numbers may be some."""

    def columns(self) -> list[str]:
        """Names of the columns."""
        with self._place.open(self.path, self._version) as file:
            return self._header(csv.reader(_decoded(file), strict=True))

    def rows(self) -> Iterator[tuple[int, Row, tuple[int, ...]]]:
        """Line, cells by column and place of every row."""
        try:
            with self._place.open(self.path, self._version) as file:
                lines = _Counted(file)
                reader = csv.reader(lines, strict=True)
                header = self._header(reader)
                start = lines.num_bytes
                for cells in reader:
                    where, start = (start, lines.num_bytes - start), lines.num_bytes
                    if any(cells):
                        yield reader.line_num, self._row(header, cells, reader.line_num), where
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{self.name} is no CSV file in UTF-8: {error}") from error

    def again(self, places: Sequence[tuple[int, ...]]) -> list[Row]:
        """The rows at places."""
        header = self.columns()
        texts = (text.decode() for text in self._texts(places))
        return [
            self._row(header, next(csv.reader(text.splitlines(keepends=True))), 0) for text in texts
        ]

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        header = [column.strip() for column in next(reader, [])]
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise DataError(f"{self.name} has two columns '{twice[0]}'", "Rename one.")
        return header

    def _row(self, header: list[str], cells: list[str], line: int) -> Row:
        if len(cells) < len(header):
            raise DataError(f"{self.name}, line {line}: too few columns: {cells}")
        return dict(zip(header, map(Cell, cells), strict=False))


class JsonlIndex(_Lines):
    """Rows of a file with one JSON object a line."""

    def columns(self) -> list[str]:
        """None: only rows tell columns."""
        return []

    def rows(self) -> Iterator[tuple[int, Row, tuple[int, ...]]]:
        """Line, cells by column and place of every row."""
        start = 0
        with self._place.open(self.path, self._version) as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield line, self._row(text, line), (start, len(text))
                start += len(text)

    def again(self, places: Sequence[tuple[int, ...]]) -> list[Row]:
        """The rows at places."""
        return [self._row(text, 0) for text in self._texts(places)]

    def _row(self, text: bytes, line: int) -> Row:
        try:
            row = json.loads(text.decode("utf-8-sig"))
        except ValueError as error:
            raise DataError(f"{self.name}, line {line}: no JSON in UTF-8: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self.name}, line {line}: no JSON object, but {text[:80]!r}")
        return row


class ParquetIndex(_File):
    """Rows of a Parquet file."""

    num_where = 1

    def columns(self) -> list[str]:
        """Names of the columns."""
        return [str(name) for name in self._table.schema.names]

    def rows(self) -> Iterator[tuple[int, Row, tuple[int, ...]]]:
        """Row number from 1, cells by column and place of every row."""
        number = 0
        for batch in self._table.to_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row, (number - 1,)

    def again(self, places: Sequence[tuple[int, ...]]) -> list[Row]:
        """The rows at places."""
        return list(self._table.take([place[0] for place in places]).to_pylist())

    @cached_property
    def _table(self) -> Any:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with self._place.open(self.path, self._version) as file:
                table = parquet.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} is no Parquet file: {error}") from error
        binary = [field.name for field in table.schema if pa.types.is_binary(field.type)]
        if binary:
            raise RecipeError(
                f"Column '{binary[0]}' of the index {self.name} holds bytes",
                "Take it as the source with dataset.format 'parquet', or leave the column out.",
            )
        return table


class _Counted:
    """Lines of a file as text, and how many bytes they took."""

    def __init__(self, file: Iterable[bytes]) -> None:
        self._file = iter(file)
        self._encoding = "utf-8-sig"
        self.num_bytes = 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.num_bytes += len(line)
        text = line.decode(self._encoding)
        self._encoding = "utf-8"
        return text


def _decoded(file: Iterable[bytes]) -> Iterator[str]:
    return iter(_Counted(file))


Span = tuple[int, int, list[tuple[int, ...]]]


def _spans(places: Sequence[tuple[int, ...]]) -> Iterator[Span]:
    """Start, size and members of reads that cover sorted places; neighbours share one."""
    members: list[tuple[int, ...]] = []
    begin = end = 0
    for start, size in places:
        far = start - end > _GAP_BYTES or start + size - begin > _SPAN_BYTES
        if members and far:
            yield begin, end - begin, members
            members = []
        if not members:
            begin = start
        members.append((start, size))
        end = start + size
    if members:
        yield begin, end - begin, members
