"""CSV and JSONL files whose lines are samples; all values of a column decide on its type."""

from __future__ import annotations

import codecs
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import DataError, RecipeError
from headrace.files.manifest import ColumnNote
from headrace.objects.protocol import Check
from headrace.packing.column_notes import is_notable, remark
from headrace.packing.sample_table import SampleTable
from headrace.packing.samples import Fields, Opening, SourceField, Unreadable
from headrace.packing.sources.arrow_columns import coded, column_of
from headrace.packing.sources.cells import (
    JSON,
    LISTS,
    TEXT,
    Cells,
    Converted,
    Tally,
    add_texts,
    convert,
    is_text,
    without_rows,
)
from headrace.packing.sources.csv_format import CsvFormat
from headrace.packing.sources.files import suffix_of
from headrace.packing.sources.line_format import (
    JsonLinesFormat,
    LineFormat,
    Rows,
    check_beginning,
    first_that_is_no_text,
    line_ends,
    without_blank,
)
from headrace.packing.sources.listing import PATHS
from headrace.packing.sources.row_container import (
    GONE,
    NO_NAME,
    ColumnOfRows,
    NoTableError,
    RowContainer,
)
from headrace.packing.sources.rows import RowSource

logger = logging.getLogger(__name__)

_BLOCK_BYTES = 2**22
_MOST_LINE_BYTES = 2**26
_SPOOLED_BYTES = 2**26
_GONE = Unreadable("", GONE)


@dataclass
class _Scan:
    """What is known of a file."""

    parts: dict[int, int] = field(default_factory=dict)
    """Rows of each part."""
    texts: dict[str, list[Any]] = field(default_factory=dict)
    """Cells of classes, groups, splits and paths: Arrow arrays, one a part."""
    bad: dict[int, str] = field(default_factory=dict)
    """Why rows cannot be read, by their number in the file."""
    lines_before: dict[int, int] = field(default_factory=lambda: {0: 0})
    """Lines before some of the parts."""


class LineTable(RowContainer):
    """Rows of an opened file; a part is a block of them, its number the byte at which it begins.

    `kinds` are types as of `Tally.kind`, known once all files are listed; to what is `scanned` of
    the file more is added.
    """

    def __init__(
        self, stream: BinaryIO, lines: LineFormat, kinds: Mapping[str, str], scanned: _Scan
    ) -> None:
        self._stream = stream
        self._lines = lines
        self._kinds = kinds
        self._scan = scanned
        self._read: tuple[int, Rows] = (-1, Rows(b"", np.empty((0, 2), dtype=np.int64)))
        content, bounds, is_last = self._content(0)
        check_beginning(content)
        self._check_text(0, content if is_last else content[: int(bounds[-1, 0])])
        self._start = lines.start(content)

    @property
    def parts(self) -> Mapping[int, int]:
        return self._scan.parts

    @property
    def types(self) -> Mapping[str, str]:
        names = self._kinds if self._lines.names is None else self._lines.names
        return {name: self._kinds[name] for name in names if name in self._kinds}

    @property
    def bad(self) -> Mapping[int, str]:
        return self._scan.bad

    @property
    def dropped(self) -> Sequence[str]:
        """What was left out of the columns, for the log."""
        return self._lines.dropped

    def field(self, name: str, column: str) -> SourceField:
        kind = self._kinds[column]
        if kind in (TEXT, JSON):
            return SourceField(name, "text", encoding="json" if kind == JSON else "")
        if kind in LISTS:
            return SourceField(name, "array")
        return SourceField(name, "value", dtype=kind.partition(" ")[0])

    def cells(self, columns: Iterable[str]) -> Mapping[str, Any]:
        return {column: coded(self.texts(column)) for column in columns}

    def texts(self, column: str) -> Any:
        """A column of classes, groups, splits or paths as an Arrow array of texts."""
        return pa.chunked_array(self._scan.texts[column], pa.string()).combine_chunks()

    def place(self, row: int) -> str:
        for part, num_rows in self.parts.items():
            if row < num_rows:
                return self._place(part, row)
            row -= num_rows
        raise IndexError(row)

    def columns(self, fields: Fields, part: int, rows: NDArray[np.int64]) -> Iterator[ColumnOfRows]:
        converted = self._columns(part, {each.column: each.type for each in fields})
        for each in fields:
            found = converted[each.column]
            if isinstance(found.values, list):
                cells = (found.values[row] for row in rows.tolist())
                mine = ColumnOfRows.of([_GONE if cell is None else cell for cell in cells])
            else:
                mine = column_of(each, found.values.take(rows))
            misfits = found.misfits and {
                at: f"{self._place(part, row)}: {found.misfits[row]}"
                for at, row in enumerate(rows.tolist())
                if row in found.misfits
            }
            yield ColumnOfRows(mine.values, {**mine.wrong, **misfits}) if misfits else mine

    def as_written(self, columns: Sequence[str]) -> Iterator[Sequence[object]]:
        """Cells of each row as Python objects, before any conversion."""
        for _, rows in self._parts():
            cells = self._lines.block(rows).cells
            found = [cells.get(name, [None] * len(rows)) for name in columns]
            lists = (each if isinstance(each, list) else each.to_pylist() for each in found)
            yield from zip(*lists, strict=True)

    def scan(self, tallies: dict[str, Tally], texts: Iterable[str]) -> None:
        """Go over all rows: count what columns hold, and keep some columns as texts."""
        found, num_rows = self._scan, 0
        found.texts |= {name: [] for name in texts}
        for part, some in self._parts():
            block, there = self._lines.block(some), dict[str, Cells]()
            for name, cells in block.cells.items():
                if name not in tallies:
                    tallies[name] = Tally(self._lines.written, self._lines.commas)
                there[name] = without_rows(cells, block.bad)
                if not self._lines.written:
                    tallies[name].add_objects(there[name])
            if self._lines.written:
                add_texts(tallies, there)
            for name, kept in found.texts.items():
                kept.append(self._texts_of(name, block.cells.get(name), part))
            for row, reason in block.bad.items():
                found.bad[num_rows + row] = f"{self._place(part, row)}: {reason}"
            found.parts[part] = len(some)
            num_rows += len(some)

    def _texts_of(self, name: str, cells: Cells | None, part: int) -> Any:
        """Cells of a part as an Arrow array of texts, null where there is none.

        Raises:
            NoTableError: One is neither text nor a whole number.
        """
        if cells is None:
            return pa.nulls(len(self._rows(part)[0]), pa.string())
        if not isinstance(cells, list):
            return cells
        texts = [str(cell) if isinstance(cell, str | int) else None for cell in cells]
        texts = [text if text is None or is_text(text) else "" for text in texts]
        for row, cell in enumerate(cells):
            if cell is not None and texts[row] is None and name not in PATHS:
                raise NoTableError(
                    f"{self._place(part, row)}: {name} is {cell!r}, which is {NO_NAME}",
                    "Numbers to predict need dataset.label_kind 'value'.",
                )
        return pa.array(texts, pa.string())

    def _columns(self, part: int, types: Mapping[str, str]) -> Mapping[str, Converted]:
        """Return columns of a part in their types."""
        rows = self._rows(part)[0]
        cells = self._lines.block(rows, list(types)).cells
        alike: dict[tuple[str, bool], list[str]] = {}
        for name, kind in types.items():
            alike.setdefault((kind, name in cells), []).append(name)
        converted: dict[str, Converted] = {}
        for (kind, _), some in alike.items():
            found = convert([cells.get(name, [None] * len(rows)) for name in some], kind)
            converted.update(zip(some, found, strict=True))
        return converted

    def _parts(self) -> Iterator[tuple[int, Rows]]:
        start, stop = -1, self._start
        while start < stop:
            start, (found, stop) = stop, self._rows(stop)
            if len(found):
                yield start, found

    def _rows(self, part: int) -> tuple[Rows, int]:
        """Whole rows from a byte on, and the byte behind them."""
        if self._read[0] != part:
            content, bounds, is_last = self._content(part)
            if not is_last:
                content, bounds = content[: int(bounds[-1, 0])], bounds[:-1]
            self._check_text(part, content)
            self._read = part, without_blank(content, bounds, self._lines.blank)
        found = self._read[1]
        return found, part + len(found.content)

    def _content(self, start: int) -> tuple[bytes, NDArray[np.int64], bool]:
        """Bytes from a row on, bounds of all rows in them, and whether the file ends there.

        Where it does not, the last row is not whole, and there are others.
        """
        content = b""
        while True:
            self._stream.seek(start + len(content))
            more = self._stream.read(_BLOCK_BYTES)
            content += more
            is_last = len(more) < _BLOCK_BYTES
            bounds, is_open = self._lines.bounds(content, is_last=is_last)
            if is_last and is_open:
                self._check_text(start, content)
                line = self._line(start, content, int(bounds[-1, 0]))
                raise NoTableError(
                    f"a quote that opens in line {line} does not close", "Close or double it."
                )
            if is_last or (len(bounds) > 1 and content[: int(bounds[-1, 0])].strip()):
                return content, bounds, is_last
            if len(content) > _MOST_LINE_BYTES:
                line = self._line(start, content, 0)
                raise NoTableError(f"line {line} is longer than 64 MiB", "Cut its values.")

    def _check_text(self, start: int, content: bytes) -> None:
        at = first_that_is_no_text(content)
        if at is not None:
            raise NoTableError(
                f"line {self._line(start, content, at)}: the byte 0x{content[at]:02x} is not UTF-8",
                "Name the encoding in dataset.encoding, as in 'latin-1' or 'cp1252', or write "
                "the file again in UTF-8.",
            )
        if found := self._lines.fault(content):
            at, error = found
            error.args = (f"line {self._line(start, content, at)}: {error}",)
            raise error

    def _place(self, part: int, row: int) -> str:
        found = self._rows(part)[0]
        first, stop = found.bounds[row].tolist()
        begins = self._line(part, found.content, first, found.line_ends)
        ends = self._line(part, found.content, stop, found.line_ends)
        return f"line {begins}" if begins == ends else f"lines {begins} to {ends}"

    def _line(
        self, start: int, content: bytes, at: int, ends: NDArray[np.int64] | None = None
    ) -> int:
        """Line of a byte of `content`, which begins at a byte of the file; counted from 1."""
        known = self._scan.lines_before
        if start not in known:
            before = max(each for each in known if each <= start)
            known[start] = known[before] + self._num_line_ends(before, start)
        if ends is None:
            ends = line_ends(np.frombuffer(content, dtype=np.uint8), is_last=True)
        return 1 + known[start] + int(np.searchsorted(ends, at))

    def _num_line_ends(self, start: int, stop: int) -> int:
        """Return how many lines end between two rows, in bounded memory."""
        num_ends, last = 0, b""
        self._stream.seek(start)
        while start < stop:
            content = self._stream.read(min(_BLOCK_BYTES, stop - start))
            num_ends += content.count(b"\n") + content.count(b"\r")
            num_ends -= (last + content).count(b"\r\n")
            start, last = start + len(content), content[-1:]
        return num_ends


class LineSource(RowSource):
    """Rows of files of lines."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self._tallies: dict[str, Tally] = {}
        self._scans: dict[str, _Scan] = {}
        self._kinds: dict[str, str] = {}

    @abstractmethod
    def lines(self, path: str) -> LineFormat:
        """Return how lines of a file are read."""

    def container(self, path: str, stream: BinaryIO, closing: ExitStack) -> LineTable:
        text = _as_utf8(stream, self._spec.encoding, closing)
        scanned = self._scans.setdefault(path, _Scan())
        return LineTable(text, self.lines(path), self._kinds, scanned)

    def list_samples(self, check: Check | None = None) -> SampleTable:
        path = self.asked.path_column(PATHS)
        texts = {*PATHS, path, *self.asked.roles.values(), *self.asked.defaults.values()}
        self._scans.clear()
        for file in self.containers(check):
            table: Any
            with self.open_rows(file.path, file.version) as table:
                table.scan(self._tallies, texts)
                for each in table.dropped:
                    logger.info("Left out of %s/%s: %s", self._place.name, file.path, each)
            if check is not None:
                check()
        self._kinds = {name: tally.kind for name, tally in self._tallies.items()}
        kinds = ", ".join(f"{name} {kind}" for name, kind in self._kinds.items())
        logger.info("Columns of %s: %s", self._place.name, kinds)
        for name, tally in self._tallies.items():
            for note in filter(is_notable, tally.notes(name)):
                logger.info("Column '%s' (%s) %s", name, self._kinds[name], remark(note))
        if self.asked.every and not self.asked.is_index:
            for path, scan in self._scans.items():
                self._refuse_index(path, scan.texts[self.asked.path_column(self._kinds)])
        return super().list_samples(check)

    def type_notes(self, field: SourceField, values: Sequence[Any]) -> list[ColumnNote]:
        return self._tallies[field.column].notes(field.name)

    def _refuse_index(self, path: str, texts: Sequence[Any]) -> None:
        """Refuse a table that names the files of samples: their paths alone would be packed."""
        first = texts[0][0].as_py() if texts else None
        folder, _, name = path.rpartition("/")
        if first and self._is_file(f"{folder}/{first}".lstrip("/")):
            raise RecipeError(
                f"The rows of {self._place.name}/{path} name files in their column "
                f"'{self.asked.path_column(self._kinds)}'",
                f"For these files set dataset.source to the folder of {name} and dataset.index to "
                f"{name}; for the rows themselves name the columns in dataset.fields.",
            )

    def _is_file(self, path: str) -> bool:
        try:
            return self._place.store.stat(path) is not None
        except (DataError, OSError, ValueError):  # a text that names no file here
            return False


class CsvSource(LineSource):
    """Rows of CSV files."""

    form = "csv"

    def lines(self, path: str) -> LineFormat:
        return CsvFormat(tabs=suffix_of(path) == ".tsv")


class JsonLinesSource(LineSource):
    """Objects of JSONL files."""

    form = "jsonl"

    def lines(self, path: str) -> LineFormat:
        return JsonLinesFormat()


def _as_utf8(stream: BinaryIO, encoding: str, closing: ExitStack) -> BinaryIO:
    """Return a file of some encoding in UTF-8."""
    if codecs.lookup(encoding).name == "utf-8":
        return stream
    decoder = codecs.getincrementaldecoder(encoding)()
    text = SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115  `closing` closes it
    closing.enter_context(text)
    content = b"?"
    while content:
        content = stream.read(_BLOCK_BYTES)
        try:
            text.write(decoder.decode(content, final=not content).encode())
        except UnicodeError as error:
            raise NoTableError(
                f"it is not written in {encoding}: {error}", "Correct dataset.encoding."
            ) from error
    return cast("BinaryIO", text)
