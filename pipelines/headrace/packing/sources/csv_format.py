"""CSV: values separated by commas, semicolons, tabs or bars; the first row names the columns."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv

from headrace.packing.sources.line_format import LineBlock, LineFormat, Rows, line_ends, row_bounds
from headrace.packing.sources.row_container import NoTableError

_DELIMITERS = ",;\t|"
_INDEX_OF_PANDAS = re.compile(r"|Unnamed: [0-9]+")
_MOST_NAME_BYTES = 2**30
_FRACTION = re.compile(r"[+-]?[0-9]*[.,][0-9]+([eE][+-]?[0-9]+)?")
_BOM = "\ufeff".encode()


class CsvFormat(LineFormat):
    """Rows as spreadsheets, pandas and the module `csv` write them."""

    written = True

    def __init__(self, *, tabs: bool = False) -> None:
        """`tabs`: whether a tab in the header is the delimiter, whatever else is there."""
        self._delimiter = ""  # not known yet
        self._tabs = tabs
        self._columns: tuple[str, ...] = ()
        self._header = b""

    def start(self, content: bytes) -> int:
        begin = super().start(content)
        bounds, _ = self.bounds(content[begin:], is_last=True)
        comments: list[bytes] = []
        for number, (first, stop) in enumerate((bounds + begin).tolist()):
            row = content[first:stop]
            if row.lower().startswith(b"sep=") and len(row) == 5:
                self._delimiter = row[4:].decode("ascii", "replace")
            elif row.startswith(b"#"):
                comments.append(row)
            elif row.strip(self.blank):
                if comments and self._names_columns(comments[-1], row):
                    row, number = comments.pop(), number - 1  # rows begin with this one
                self._take_header(row)
                self.dropped = [*self.dropped, *(each.decode() for each in comments)]
                rest = bounds[number + 1 : number + 2, 0] + begin
                return int(rest[0]) if len(rest) else len(content)
        if comments:
            self._take_header(comments[0])
            return len(content)
        raise NoTableError("it holds no row", "Name the columns in its first line.")

    def _names_columns(self, row: bytes, following: bytes) -> bool:
        """Return whether a row that begins as a comment is the header of the one behind it."""
        delimiter = self._delimiter or _delimiter_of(following.decode(), tabs=self._tabs)
        names, cells = (_cells(each.decode(), delimiter) for each in (row, following))
        return len(names) == len(cells) > 1 and bool(names[0][1:2].strip())

    def fault(self, content: bytes) -> tuple[int, NoTableError] | None:
        """Return where a quote is escaped by a backslash, which no reader of CSV expects."""
        if b'\\"' not in content:
            return None
        ends = re.escape((self._delimiter or _DELIMITERS).encode()) + rb"\r\n"
        pattern = rb'(?:(?<=[%b])|\A)"(?:[^"]|"")*?(\\(?:"(?=[^"%b])|""(?=[%b]|\Z)))' % (
            ends,
            ends,
            ends,
        )
        found = re.search(pattern, content)
        return found and (
            found.start(1),
            NoTableError(
                "a quote is escaped by a backslash",
                "Write quotes inside of values twice, as Spark does with the option escape='\"'.",
            ),
        )

    def _take_header(self, row: bytes) -> None:
        text = row.decode()
        self._header = row.strip()
        self._delimiter = self._delimiter or _delimiter_of(text, tabs=self._tabs)
        names = [name.strip() for name in _cells(text, self._delimiter)]
        self.commas = self._delimiter != ","
        numbers = [int(name) for name in names if name.isdecimal() and len(name) < 10]
        are_numbers = len(numbers) == len(names) and numbers != sorted({*numbers})
        if are_numbers or any(map(_FRACTION.fullmatch, names)):
            raise NoTableError(
                f"its first row seems to be data: {text[:200]}",
                "Write a first row that names the columns.",
            )
        first = "its first row names"
        twice, times = Counter(filter(None, names)).most_common(1)[0] if any(names) else ("", 0)
        if times > 1:
            raise NoTableError(
                f"{first} two columns '{twice}': {text[:200]}", "Rename one of them."
            )
        # a delimiter at the end of each row makes a column without a name and values
        self._num_named = len(names) if any(names[1:]) else 1
        while self._num_named > 1 and not names[self._num_named - 1]:
            self._num_named -= 1
        if "" in names[1 : self._num_named]:
            place = names.index("", 1) + 1
            raise NoTableError(
                f"{first} no column {place}: {text[:200]}", "Name it, or take it out."
            )
        self._columns = tuple(names[: self._num_named])
        unnamed = _INDEX_OF_PANDAS.fullmatch(names[0]) and len(names) > 1
        self.names = self._columns[1:] if unnamed else self._columns
        self.dropped = [f"the first column, '{names[0]}', an index of pandas"] if unnamed else []

    def bounds(self, content: bytes, *, is_last: bool) -> tuple[NDArray[np.int64], bool]:
        codes = np.frombuffer(content, dtype=np.uint8)
        ends = line_ends(codes, is_last=is_last)
        if b'"' not in content:
            return row_bounds(codes, ends), False
        quotes = self._quotes(content, codes)
        inside = np.searchsorted(quotes, ends) % 2 == 1
        return row_bounds(codes, ends[~inside]), len(quotes) % 2 == 1

    def _quotes(self, content: bytes, codes: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return offsets of quotes that open and close values, alternating."""
        quotes = np.flatnonzero(codes == ord('"'))
        before = f'"\n\r{self._delimiter or _DELIMITERS}'.encode()
        opening = quotes[::2]
        behind = codes[np.maximum(opening - 1, 0)]
        if (np.isin(behind, list(before)) | (opening == 0)).all():
            return quotes
        # some are parts of values that do not begin with a quote
        pattern = rb'(?:(?<=[\n\r%b])|(?<![\s\S]))"[^"]*(?:""[^"]*)*("?)' % re.escape(before[3:])
        edges: list[int] = []
        for each in re.finditer(pattern, content):
            edges.append(each.start())
            edges += [each.start(1)] if each.group(1) else []
        return np.array(edges, dtype=np.int64)

    @property
    def blank(self) -> bytes:  # type: ignore[override]
        """Characters of rows that hold nothing."""
        return b" \t" + self._delimiter.encode()

    def block(self, rows: Rows, columns: Sequence[str] | None = None) -> LineBlock:
        wanted = {*(columns or self.names or ())}
        names = [name for name in self.names or () if name in wanted]
        bad: dict[int, str] = {}
        longer: dict[int, dict[str, str]] = {}

        def misfit(row: Any) -> str:
            cells = _cells(row.text, self._delimiter)
            if len(cells) > len(self._columns) and not any(cells[len(self._columns) :]):
                longer[row.number - 1] = dict(zip(self._columns, cells, strict=False))
            else:
                what = f"it has {len(cells)} values, the header names {len(self._columns)} columns"
                more = f"; quote values that hold a '{self._delimiter}'"
                bad[row.number - 1] = what + more * (len(cells) > len(self._columns))
            return "skip"

        content = _BOM + rows.joined if rows.joined.startswith(_BOM) else rows.joined
        table = arrow_csv.read_csv(  # which leaves out the first mark of a byte order
            io.BytesIO(content),
            arrow_csv.ReadOptions(
                column_names=self._columns, use_threads=False, block_size=len(content) + 1
            ),
            arrow_csv.ParseOptions(
                delimiter=self._delimiter, invalid_row_handler=misfit, ignore_empty_lines=False
            ),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self._columns, "string"),
                include_columns=names,
                strings_can_be_null=False,
            ),
        )
        cells = {name: table.column(at).combine_chunks() for at, name in enumerate(names)}
        if skipped := {**longer, **{row: {} for row in bad}}:
            cells = _with_rows(cells, len(rows), skipped)
        if self._header in rows.content:
            found = (row.strip().removeprefix(codecs.BOM_UTF8) for row in rows.each)
            again = (at for at, row in enumerate(found) if row == self._header)
            bad |= dict.fromkeys(again, "it repeats the header")
        return LineBlock(cells, bad)


def _delimiter_of(header: str, *, tabs: bool) -> str:
    outside = re.sub(r'"(?:[^"]|"")*"', "", header)
    return "\t" if tabs and "\t" in outside else max(_DELIMITERS, key=outside.count)


def _cells(text: str, delimiter: str) -> list[str]:
    """Values of one row."""
    csv.field_size_limit(_MOST_NAME_BYTES)
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _with_rows(
    cells: Mapping[str, Any], num_rows: int, skipped: Mapping[int, Mapping[str, str]]
) -> dict[str, Any]:
    """Return cells with those of rows that were skipped; empty ones where a row has none."""
    mask = np.isin(np.arange(num_rows), list(skipped))
    at, gaps = pa.array(np.cumsum(~mask) - 1, pa.int64(), mask=mask), pa.array(mask)
    ordered = [skipped[row] for row in sorted(skipped)]
    return {
        name: pc.replace_with_mask(
            each.take(at), gaps, pa.array([row.get(name, "") for row in ordered], each.type)
        )
        for name, each in cells.items()
    }
