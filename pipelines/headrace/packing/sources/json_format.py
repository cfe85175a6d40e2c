"""JSONL: an object of JSON a line."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.packing.sources.cells import TooLarge, is_text
from headrace.packing.sources.line_format import LineBlock, LineFormat, Rows
from headrace.packing.sources.row_container import NoTableError

_MOST_DIGITS = 4300  # of whole numbers that Python reads
_BOM = b"\xef\xbb\xbf"


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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole)
