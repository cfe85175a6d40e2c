"""JSONL, an object of JSON a line, and what formats of lines have in common: blocks of rows."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headrace.packing.sources.cells import Cells, TooLarge, is_text
from headrace.packing.sources.row_container import NoTableError

_MOST_DIGITS = 4300  # of whole numbers that Python reads
_BOM = b"\xef\xbb\xbf"
_CONTENTS = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "a zip or Excel file", b"PAR1": "Parquet", b"\xd0\xcf\x11\xe0": "an Excel file",
}  # fmt: skip
"""What other files begin with."""
_UTF = {
    b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """Whole rows of a file."""

    content: bytes
    """Bytes that hold them."""
    bounds: NDArray[np.int64]
    """Beginning and end of each, `(num_rows, 2)`; empty ones are left out."""
    are_all: bool = False
    """Whether `content` holds no other rows."""

    def __len__(self) -> int:
        return len(self.bounds)

    @cached_property
    def each(self) -> list[bytes]:
        """Bytes of each row, without its line end."""
        content = self.content
        return [content[first:stop] for first, stop in self.bounds.tolist()]

    @cached_property
    def joined(self) -> bytes:
        """Bytes of these rows alone."""
        return self.content if self.are_all else b"\n".join(self.each) + b"\n"

    @cached_property
    def line_ends(self) -> NDArray[np.int64]:
        """Offsets of line ends in `content`, those inside of quotes, too."""
        return line_ends(np.frombuffer(self.content, dtype=np.uint8), is_last=True)


@dataclass(frozen=True)
class LineBlock:
    """Cells of some rows."""

    cells: Mapping[str, Cells]
    """Cells by column; a column that is not there has no values."""
    bad: Mapping[int, str] = field(default_factory=dict)
    """Why a row cannot be read, by its position in the block."""


class LineFormat(ABC):
    """How the lines of one file are read."""

    written: ClassVar[bool]
    """Whether cells are texts that may mean numbers."""
    commas = False
    """Whether these may have decimal commas."""
    names: Sequence[str] | None = None
    """Columns of the file; None where each row names its own."""
    dropped: Sequence[str] = ()
    """What was left out of the columns, for the log."""

    def start(self, content: bytes) -> int:
        """The byte at which rows begin; `NoTableError` if the first cannot name columns."""
        return 3 if content.startswith(_BOM) else 0

    def bounds(self, content: bytes, *, is_last: bool) -> tuple[NDArray[np.int64], bool]:
        """Where each row begins and ends, `(num_rows, 2)`, and whether the last ends inside quotes.

        `content` begins with a row; the file ends with it if `is_last`. Line ends are left out.
        """
        codes = np.frombuffer(content, dtype=np.uint8)
        return row_bounds(codes, line_ends(codes, is_last=is_last)), False

    def fault(self, content: bytes) -> tuple[int, NoTableError] | None:
        """Return why rows cannot be read, and at which byte."""
        del content
        return None

    blank = b" \t"
    """Characters of rows that hold nothing, and are passed over."""

    @abstractmethod
    def block(self, rows: Rows, columns: Sequence[str] | None = None) -> LineBlock:
        """Return the cells of rows as they are written; of some columns at least, or of all."""


def line_ends(codes: NDArray[np.uint8], *, is_last: bool) -> NDArray[np.int64]:
    """Offsets in bytes of line feeds, and of carriage returns that no line feed follows.

    `is_last`: the file ends with these bytes.
    """
    ends = np.flatnonzero(codes == ord("\n"))
    returns = np.flatnonzero(codes == ord("\r"))
    if not len(returns):
        return ends
    following = np.append(codes, ord("\n") if not is_last else 0)[returns + 1]
    return np.sort(np.concatenate([ends, returns[following != ord("\n")]]))


def without_blank(content: bytes, bounds: NDArray[np.int64], blank: bytes) -> Rows:
    """Rows of some bounds, but those that hold nothing."""
    if not len(bounds):
        return Rows(content, bounds)
    codes = np.frombuffer(content + b" ", dtype=np.uint8)
    first = codes[bounds[:, 0]]
    doubtful = np.flatnonzero(np.isin(first, list(blank)) | (bounds[:, 0] == bounds[:, 1]))
    gone = [at for at in doubtful.tolist() if not content[slice(*bounds[at])].strip(blank)]
    return Rows(content, np.delete(bounds, gone, axis=0) if gone else bounds, not gone)


def row_bounds(codes: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Beginning and end of each row, `(num_rows, 2)`, without line ends."""
    begins = np.concatenate([[0], ends + 1])
    stops = np.append(ends, len(codes))
    before = codes[np.maximum(stops - 1, 0)] if len(codes) else np.zeros(1, np.uint8)
    stops = stops - ((before == ord("\r")) & (stops > begins))
    return np.stack([begins, stops], axis=1)


def first_that_is_no_text(content: bytes) -> int | None:
    """Offset of the first byte that is not UTF-8; None when all are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def check_beginning(content: bytes) -> None:
    """Raise a `NoTableError` if the first bytes of a file are UTF-16, or of another format."""
    for magic, name in _CONTENTS.items():
        if content.startswith(magic):
            raise NoTableError(
                f"its content is {name}", "Unpack or convert it, or correct the name of the file."
            )
    zeros = "utf-16" if b"\0" in content[:4] else ""
    found = next((name for mark, name in _UTF.items() if content.startswith(mark)), zeros)
    if found:
        raise NoTableError(
            f"it is written in {found.upper()}",
            f"Set dataset.encoding to '{found}', or write it in UTF-8.",
        )


class JsonLinesFormat(LineFormat):
    """Objects of JSON; their keys are columns."""

    written = False

    def start(self, content: bytes) -> int:
        begin = super().start(content)
        if content[begin : begin + 2**16].lstrip().startswith(b"["):
            raise NoTableError(
                "it begins with an array of JSON, not with an object a line",
                "Write an object a line, as by `jq -c '.[]' FILE > FILE.jsonl`.",
            )
        return begin

    def block(self, rows: Rows, columns: Sequence[str] | None = None) -> LineBlock:
        objects: list[dict[str, Any]] = []
        bad: dict[int, str] = {}
        for place, row in enumerate(rows.each):
            try:
                objects.append(_object(row))
            except RecursionError:
                objects.append({})
                bad[place] = "its lists or objects are nested too deep"
            except ValueError as error:
                objects.append({})
                bad[place] = str(error)
        names = columns or dict.fromkeys(name for each in objects for name in each)
        return LineBlock({name: [each.get(name) for each in objects] for name in names}, bad)


def _object(row: bytes) -> dict[str, Any]:
    try:
        found = _DECODER.decode(row.removeprefix(_BOM).decode())
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no object of JSON")  # noqa: TRY004  the row is at fault, not a program
    for name in found if b"\\u" in row else ():
        if not is_text(name):
            raise ValueError(f"the key {name!r} holds half of a surrogate pair")
    return found


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise a ValueError if a key is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {name!r} is there twice")
    return found


def _finite(text: str) -> float | TooLarge:
    number = float(text)
    return TooLarge(text) if math.isinf(number) else number


def _whole(text: str) -> int | TooLarge:
    return int(text) if len(text) < _MOST_DIGITS else TooLarge(text)


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_float=_finite, parse_int=_whole)
