"""How lines of CSV and JSONL files are read as tables, and what their columns hold."""

from __future__ import annotations

import io
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.packing.sources.arrow import is_of_numbers
from headrace.packing.sources.arrow_columns import coded

logger = logging.getLogger(__name__)

MOST_LINE_BYTES = 2**26
"""Bytes of a line that are read; a longer one is refused."""

_dumped = partial(json.dumps, ensure_ascii=False)
_DELIMITERS = ",;\t|"
_MOST_TRIED = 1000  # values of a column of texts that may be numbers with mistakes among them


@dataclass(frozen=True)
class LineBlock:
    """Some lines as a table."""

    table: Any
    """Arrow's table, a row a line."""
    bad: Mapping[int, str] = field(default_factory=dict)
    """Why a line is no row, by its place in the block."""


class LineFormat(ABC):
    """How lines are read; types of columns are known once `learn` was called.

    Args:
        texts: Columns that are read as texts, whatever they hold.
        counted: Columns whose values make a line a row or none; empty for all.
    """

    def __init__(self, texts: Iterable[str], counted: Sequence[str]) -> None:
        import pyarrow as pa

        self.types: dict[str, Any] = {}
        """Arrow's type of each column."""
        self.nested: set[str] = set()
        """Columns of objects, and of lists of other than numbers: texts of JSON."""
        self._texts = dict.fromkeys(texts, pa.string())
        self._counted = counted

    @abstractmethod
    def parse(self, lines: Sequence[bytes], types: Mapping[str, Any]) -> LineBlock:
        """Lines as a table whose columns have these types, others those that fit.

        Raises:
            ArrowInvalid: A value is not of its type.
        """

    @abstractmethod
    def parse_each(self, lines: Sequence[bytes]) -> LineBlock:
        """As `parse` with the types that are known, when that fails: value by value.

        A column of whole numbers becomes one of any numbers where these come.
        """

    def start(self, first_line: bytes) -> int:
        """Take in the first line; the byte at which rows begin."""
        del first_line
        return 0

    @property
    def names(self) -> Sequence[str]:
        """Columns of the file whose first line was taken in last."""
        return tuple(self.types)

    def rows(self, content: bytes) -> tuple[list[bytes], bool]:
        """Rows from the beginning of one on, and whether the last ends inside quotes."""
        return content.split(b"\n"), False

    @abstractmethod
    def learn(self, lines: Sequence[bytes]) -> bool:
        """Take the types of columns that have none yet from lines; whether all have one now."""

    def _misfit(self, bad: dict[int, str], row: int, name: str, cell: object) -> None:
        """Note that a value is not of its column's type, if the column counts."""
        if not self._counted or name in self._counted:
            bad.setdefault(row, f"{name} is {cell!r}, no {self.types[name]}")

    def block(self, lines: Sequence[bytes]) -> LineBlock:
        """Lines as a table."""
        import pyarrow as pa

        try:
            return self.parse(lines, self.types)
        except pa.ArrowInvalid:  # one of the values is not of its type
            return self.parse_each(lines)


class CsvFormat(LineFormat):
    """Values separated by commas, semicolons, tabs or bars; the first line names the columns."""

    _names: tuple[str, ...] = ()
    _delimiter = ","

    def start(self, first_line: bytes) -> int:
        import csv

        try:
            text = first_line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"its first line is not UTF-8: {first_line!r:.100}") from None
        self._delimiter = max(_DELIMITERS, key=text.count)
        if self.rows(text.encode())[1]:
            raise ValueError(f"its first line ends inside quotes: {text}")
        self._names = tuple(next(csv.reader([text], delimiter=self._delimiter), ()))
        if len(set(self._names)) < len(self._names):
            raise ValueError(f"its first line names a column twice: {text}")
        return len(first_line)

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def rows(self, content: bytes) -> tuple[list[bytes], bool]:
        if b'"' not in content:
            return super().rows(content)
        content = b"\n" + content + b"\n"
        codes = np.frombuffer(content, dtype=np.uint8)
        quotes = np.flatnonzero(codes == ord('"'))
        begin = f'"\n{self._delimiter}'.encode()
        if not np.isin(codes[quotes[::2] - 1], list(begin)).all():  # some are parts of values
            pattern = rb'(?<![^\n%b])"[^"]*(?:""[^"]*)*("?)' % re.escape(begin[2:])
            edges = [(each.start(), each.start(1)) for each in re.finditer(pattern, content)]
            quotes = np.array(edges).ravel()
        breaks = np.flatnonzero(codes == ord("\n"))
        is_inside = np.searchsorted(quotes, breaks) % 2 == 1
        goes_on, is_inside[-1] = bool(is_inside[-1]), False
        ends = breaks[~is_inside].tolist()
        return [content[start + 1 : end] for start, end in pairwise(ends)], goes_on

    def learn(self, lines: Sequence[bytes]) -> bool:
        import pyarrow as pa

        unknown = [name for name in self._names if self.types.get(name, pa.null()) == pa.null()]
        if unknown:
            found = self.parse(lines, self._texts).table
            for name in unknown:
                kind = found.schema.field(name).type
                self.types[name] = _kept(kind)
                if pa.types.is_temporal(kind):
                    logger.info("Column '%s' holds dates or times: read as text", name)
                elif pa.types.is_string(kind) and name not in self._texts:
                    self.types[name] = _type_of_most(found.column(name)[:_MOST_TRIED].to_pylist())
        return pa.null() not in (self.types[name] for name in self._names)

    def parse(self, lines: Sequence[bytes], types: Mapping[str, Any]) -> LineBlock:
        from pyarrow import csv

        bad: dict[int, str] = {}

        def skip(row: Any) -> str:
            bad[row.number - 1] = f"it has {row.actual_columns} values, not {row.expected_columns}"
            return "skip"

        content = b"\n".join(lines) + b"\n"
        table = csv.read_csv(
            io.BytesIO(content),
            csv.ReadOptions(
                column_names=list(self._names), use_threads=False, block_size=len(content) + 1
            ),
            csv.ParseOptions(
                delimiter=self._delimiter, invalid_row_handler=skip, ignore_empty_lines=False
            ),
            csv.ConvertOptions(
                column_types={name: types[name] for name in self._names if name in types},
                null_values=_missing(),
            ),
        )
        return LineBlock(_spread(table, len(lines), bad), bad)

    def parse_each(self, lines: Sequence[bytes]) -> LineBlock:
        import pyarrow as pa

        read = self.parse(lines, dict.fromkeys(self._names, pa.string()))
        bad, columns = dict(read.bad), {}
        for name in self._names:
            cells = coded(read.table.column(name))
            values, kind = _fitting(cells.values, self.types[name])
            self.types[name] = kind
            for row in np.flatnonzero(np.isin(cells.codes, _misfits(values))).tolist():
                self._misfit(bad, row, name, cells[row])
            columns[name] = _array(values, kind).take(pa.array(cells.codes.astype(np.int64)))
        return LineBlock(pa.table(columns), bad)


class JsonLinesFormat(LineFormat):
    """An object of JSON a line; classes, groups and splits may be numbers, too."""

    def learn(self, lines: Sequence[bytes]) -> bool:
        import pyarrow as pa

        for place, line in enumerate(lines):
            for name, value in _object(line, place, {}).items():
                if self.types.get(name, pa.null()) == pa.null():
                    self.types[name] = self._type_of(name, value)
        return bool(self.types) and pa.null() not in self.types.values()

    def parse(self, lines: Sequence[bytes], types: Mapping[str, Any]) -> LineBlock:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        if self.nested:
            raise pa.ArrowInvalid("objects are kept as they are written")
        content = b"\n".join(lines) + b"\n"
        table = arrow_json.read_json(
            io.BytesIO(content),
            arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("some lines are empty")
        return LineBlock(table)

    def parse_each(self, lines: Sequence[bytes]) -> LineBlock:
        import pyarrow as pa

        bad: dict[int, str] = {}
        rows = [_object(line, place, bad) for place, line in enumerate(lines)]
        columns = {}
        for name in self.types:
            cells = [row.get(name) for row in rows]
            if name in self.nested:
                cells = [None if each is None else _dumped(each) for each in cells]
            values, kind = _fitting(cells, self.types[name])
            self.types[name] = kind
            for place in _misfits(values):
                self._misfit(bad, place, name, cells[place])
            columns[name] = _array(values, kind)
        return LineBlock(pa.table(columns), bad)

    def _type_of(self, name: str, value: object) -> Any:
        """The type of a column by its first value; numbers in lists are any numbers."""
        import pyarrow as pa

        if value is None or value == []:
            return pa.null()
        with suppress(pa.ArrowException, TypeError, OverflowError):  # lists of this and that
            found = _kept(pa.array([value]).type)
            if not isinstance(value, dict | list) or is_of_numbers(found):
                return found
        self.nested.add(name)
        return pa.string()


@cache
def _missing() -> list[str]:
    """What stands for no value in columns of numbers: as Arrow's, but `nan` is a number."""
    from pyarrow import csv

    return [text for text in csv.ConvertOptions().null_values if "nan" not in text.lower()]


_MISFIT = object()
"""Stands for a value that is not of its column's type."""


def _type_of_most(texts: Sequence[str | None]) -> Any:
    """The type of numbers when nine of ten texts are numbers, so that others are mistakes."""
    import pyarrow as pa

    for kind in (pa.int64(), pa.float64()):
        values = [_cast(each, kind) for each in texts]
        if sum(each is _MISFIT for each in values) <= len(values) / 10:
            return kind if any(each is not None for each in values) else pa.string()
    return pa.string()


def _fitting(cells: Sequence[object], kind: Any) -> tuple[list[object], Any]:
    """Values of cells, and their type: that one, or any numbers where more are such."""
    import pyarrow as pa

    values = [_cast(each, kind) for each in cells]
    if _MISFIT in values and pa.types.is_integer(kind):
        wider = [_cast(each, pa.float64()) for each in cells]
        if len(_misfits(wider)) < len(_misfits(values)):
            return wider, pa.float64()
    return values, kind


def _cast(value: object, kind: Any) -> object:
    import pyarrow as pa

    if value is None or pa.types.is_string(kind):
        return value if value is None or isinstance(value, str) else _MISFIT
    try:
        if isinstance(value, str):
            if value in _missing():
                return None
            return pa.scalar(value.strip()).cast(kind).as_py()
        if isinstance(value, bool) != pa.types.is_boolean(kind):
            return _MISFIT
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return _MISFIT


def _misfits(values: Sequence[object]) -> list[int]:
    return [place for place, value in enumerate(values) if value is _MISFIT]


def _array(values: Sequence[object], kind: Any) -> Any:
    import pyarrow as pa

    return pa.array([None if each is _MISFIT else each for each in values], kind)


def _kept(kind: Any) -> Any:
    """The type in which a column is read: dates are texts, lists of numbers of any numbers."""
    import pyarrow as pa

    if pa.types.is_binary(kind):
        raise pa.ArrowInvalid("it is not UTF-8")
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = kind.value_type
        return pa.list_(pa.float64() if pa.types.is_integer(inner) else _kept(inner))
    return kind


def _object(line: bytes, place: int, bad: dict[int, str]) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        bad[place] = f"no JSON: {error}"
        return {}
    if not isinstance(found, dict):
        bad[place] = "no object of JSON"
        return {}
    return found


def _spread(table: Any, num_rows: int, bad: Mapping[int, str]) -> Any:
    """The table with empty rows where lines were left out."""
    import pyarrow as pa

    if not bad:
        return table
    numbers = np.cumsum([row not in bad for row in range(num_rows)]) - 1
    indices = pa.array([None if row in bad else int(numbers[row]) for row in range(num_rows)])
    return table.take(indices.cast(pa.int64()))
