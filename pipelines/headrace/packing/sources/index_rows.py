"""Rows of CSV, JSONL and Parquet index files: how single rows are found again, and what cells hold.

CSV and JSON are read by the standard library, as pyarrow's readers tell neither the line of a row
nor its bytes, and would take the class `007` for a number.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, BinaryIO

import xxhash

from headrace.errors import DataError, RecipeError
from headrace.fields.field_kind import Value
from headrace.fields.value import number_type, to_number
from headrace.objects.protocol import ByteRange, StoredFile
from headrace.packing.samples import Fields, SourceField
from headrace.packing.sources.arrow_columns import as_text
from headrace.packing.sources.files import check_field_name, suffix_of
from headrace.packing.sources.source_store import SourceStore

SUFFIXES = (".csv", ".jsonl", ".parquet")
"""Endings of index files."""

Row = Mapping[str, object]
Where = tuple[int, ...]

_DTYPES = {bool: "bool", int: "int64", float: "float64"}


class IndexFile(ABC):
    """Rows of an index file."""

    num_where = 2
    """Numbers that find a row again."""
    columns: Sequence[str] = ()
    """Names of the columns, where a file without rows tells them; known after `rows`."""

    def __init__(self, place: SourceStore, file: StoredFile) -> None:
        self.path = file.path
        self.name = f"{place.name}/{file.path}"
        self._place = place
        self._version = file.version

    @abstractmethod
    def rows(self) -> Iterator[tuple[int, Row, Where]]:
        """Line, cells by column and place of every row."""

    @abstractmethod
    def again(self, places: Sequence[Where]) -> list[Row]:
        """The rows at places."""

    def _texts(self, places: Sequence[Where]) -> list[bytes]:
        """Bytes of a text file at (start, size), read in the file's order."""
        order = sorted(set(places))
        ranges = [ByteRange(self.path, self._version, start, size) for start, size in order]
        found = dict(zip(order, self._place.read_ranges(ranges), strict=True))
        return [found[place] for place in places]


def open_index(place: SourceStore, file: StoredFile) -> IndexFile:
    """The rows of an index file, by the ending of its name."""
    kinds: dict[str, Callable[[SourceStore, StoredFile], IndexFile]]
    kinds = {".csv": _CsvIndex, ".jsonl": _JsonlIndex, ".parquet": _ParquetIndex}
    return kinds[suffix_of(file.path)](place, file)


class _CsvIndex(IndexFile):
    def rows(self) -> Iterator[tuple[int, Row, Where]]:
        try:
            with self._place.open(self.path, self._version) as file:
                reader = _csv_reader(file)
                self.columns = self._header(reader)
                end = file.tell()
                for cells in reader:
                    start, end = end, file.tell()
                    if any(cells):
                        row = self._row(self.columns, cells, reader.line_num)
                        yield reader.line_num, row, (start, end - start)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{self.name} is no CSV file in UTF-8: {error}") from error

    def again(self, places: Sequence[Where]) -> list[Row]:
        with self._place.open(self.path, self._version) as file:
            header = self._header(_csv_reader(file))
        lines = (text.decode().splitlines(keepends=True) for text in self._texts(places))
        return [self._row(header, next(csv.reader(some)), 0) for some in lines]

    def _header(self, reader: Iterator[list[str]]) -> list[str]:
        header = [column.strip() for column in next(reader, [])]
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise DataError(f"{self.name} has two columns '{twice[0]}'", "Rename one.")
        return header

    def _row(self, header: Sequence[str], cells: list[str], line: int) -> Row:
        if len(cells) < len(header):
            raise DataError(f"{self.name}, line {line}: too few columns: {cells}")
        return dict(zip(header, map(_CsvCell, cells), strict=False))


def _csv_reader(file: BinaryIO) -> Any:
    first = next(file, b"").decode("utf-8-sig")
    return csv.reader(chain([first], map(bytes.decode, file)), strict=True)


class _JsonlIndex(IndexFile):
    def rows(self) -> Iterator[tuple[int, Row, Where]]:
        start = 0
        with self._place.open(self.path, self._version) as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield line, self._row(text, line), (start, len(text))
                start += len(text)

    def again(self, places: Sequence[Where]) -> list[Row]:
        return [self._row(text, 0) for text in self._texts(places)]

    def _row(self, text: bytes, line: int) -> Row:
        try:
            row = json.loads(text.decode("utf-8-sig"))
        except ValueError as error:
            raise DataError(f"{self.name}, line {line}: no JSON in UTF-8: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{self.name}, line {line}: no JSON object, but {text[:80]!r}")
        return row


class _ParquetIndex(IndexFile):
    num_where = 1

    def rows(self) -> Iterator[tuple[int, Row, Where]]:
        self.columns = self._table.schema.names
        number = 0
        for batch in self._table.to_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row, (number - 1,)

    def again(self, places: Sequence[Where]) -> list[Row]:
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
                "Take it as dataset.source in place of dataset.index, or write it without the "
                "column.",
            )
        return pa.table([as_text(column) for column in table.columns], names=table.column_names)


class _CsvCell(str):
    """Text of a CSV file, which may mean a number."""

    __slots__ = ()


class IndexColumns:
    """What the columns of an index hold, found out row by row."""

    def __init__(self, named: Mapping[str, str], numbers: Sequence[str], *, every: bool) -> None:
        self.named = dict(named)
        self._numbers = numbers
        self._every = every
        self._kinds: dict[str, str] = {}
        self._first_gap: dict[str, int] = {}
        self._hash = 0

    def start(self, columns: Sequence[str]) -> None:
        """Begin with the columns that may be fields."""
        if self._every:
            taken = {*self.named, *self.named.values()}
            self.named |= {name: name for name in columns if name not in taken}

    @property
    def hashed(self) -> tuple[str, ...]:
        """One hash of all values, in whatever order their rows are; empty for no columns."""
        return (f"{self._hash:032x}",) if self.named else ()

    def add(self, path: str, line: int, row: Row) -> None:
        """Count a row."""
        for field, column in self.named.items():
            if column not in row:
                raise DataError(f"Line {line} of the index has no '{column}', but others have")
            kind = _kind(row[column])
            self._kinds[field] = _both(self._kinds.get(field, kind), kind)
            if kind == "null":
                self._first_gap.setdefault(field, line)
        if self.named:
            told = repr((path, [(field, row[column]) for field, column in self.named.items()]))
            self._hash ^= xxhash.xxh3_128_intdigest(told.encode(errors="surrogatepass"))

    def fields(self, index: str) -> Fields:
        """The fields, numbers last; `index` is the name of the file for messages."""
        fields = [self._field(index, name, kind) for name, kind in self._kinds.items()]
        return tuple(sorted(fields, key=lambda field: field.kind == "value"))

    def _field(self, index: str, name: str, kind: str) -> SourceField:
        column, is_number = self.named.get(name, name), kind in _DTYPES.values()
        check_field_name(name, f"'{name}' of {index}")
        if name in self._numbers and not is_number:
            raise DataError(
                f"Column '{column}' of {index} holds values that are no numbers",
                "Correct them, or set dataset.label_kind to 'class'.",
            )
        if is_number and name in self._first_gap:
            raise DataError(
                f"{index}, line {self._first_gap[name]}: '{column}' has no value",
                "Write a number (or nan) in every row, take the column out of the file, or name "
                "only others in dataset.fields.",
            )
        if is_number:
            return SourceField(name, "value", dtype=kind)
        return SourceField(name, "text", encoding="json" if kind == "json" else "")


def as_value(field: SourceField, raw: object) -> Value:
    """A cell as the value of its field."""
    if field.kind == "value":
        return to_number(field.dtype, raw)
    if field.encoding == "json":
        return json.dumps(raw, ensure_ascii=False, default=str)
    return "" if raw is None else str(raw)


def _kind(raw: object) -> str:
    if isinstance(raw, _CsvCell):
        return number_type(raw) or "cell" if raw else "null"
    if isinstance(raw, str):
        return "text"
    if raw is None:
        return "null"
    if isinstance(raw, int) and not isinstance(raw, bool) and not -(2**63) <= raw < 2**63:
        return "json"
    return _DTYPES.get(type(raw), "json")


def _both(one: str, other: str) -> str:
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if {one, other} == {"int64", "float64"}:
        return "float64"
    return "cell" if "cell" in (one, other) else "json"
