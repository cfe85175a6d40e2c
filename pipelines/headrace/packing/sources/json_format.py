"""JSONL: an object of JSON a line."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Sequence
from typing import Any

from headrace.packing.sources.cells import EXACT, TooLarge
from headrace.packing.sources.line_format import LineBlock, LineFormat, NoTextError, Rows

_MOST_BRACKETS = 1000  # of a line that Arrow reads: it recurses


class JsonLinesFormat(LineFormat):
    """Objects of JSON; their keys are columns.

    Args:
        lists_as_texts: Whether lists of numbers are kept as they are written.
    """

    written = False

    def __init__(self, *, lists_as_texts: bool = False) -> None:
        self._lists_as_texts = lists_as_texts
        self._texts: dict[str, Any] = {}  # columns of texts that Arrow would take for times

    def start(self, content: bytes) -> int:
        begin = super().start(content)
        if content[begin : begin + 2**16].lstrip().startswith(b"["):
            raise NoTextError(
                "it begins with an array of JSON, not with an object a line",
                "Write an object a line, as by `jq -c '.[]' FILE > FILE.jsonl`.",
            )
        return begin

    def block(self, rows: Rows, texts: Collection[str]) -> LineBlock:
        del texts  # texts and numbers differ in JSON
        found = self._by_arrow(rows)
        if found is not None:
            return LineBlock(found)
        objects, bad = _objects(rows.each)
        names = dict.fromkeys(name for each in objects for name in each)
        return LineBlock({name: [each.get(name) for each in objects] for name in names}, bad)

    def as_written(self, rows: Rows, columns: Sequence[str]) -> list[Sequence[object]]:
        objects, _ = _objects(rows.each)
        return [[each.get(name) for each in objects] for name in columns]

    def _by_arrow(self, rows: Rows) -> dict[str, Any] | None:
        """Columns of rows; None where a row must be read by itself, to be exact or named."""
        import pyarrow as pa

        if not all(map(_is_plain, rows.each)):
            return None
        try:
            table = self._read(rows.joined)
            if times := [each.name for each in table.schema if pa.types.is_temporal(each.type)]:
                self._texts |= dict.fromkeys(times, pa.string())
                table = self._read(rows.joined)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        is_exact = table.num_rows == len(rows) and all(map(self._is_exact, columns.values()))
        return columns if is_exact else None

    def _read(self, content: bytes) -> Any:
        import pyarrow as pa
        from pyarrow import json as arrow_json

        return arrow_json.read_json(
            io.BytesIO(content),
            arrow_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
            arrow_json.ParseOptions(explicit_schema=pa.schema(list(self._texts.items()))),
        )

    def _is_exact(self, column: Any) -> bool:
        """Whether Arrow reads a column as it is written."""
        import pyarrow as pa
        from pyarrow import compute

        while pa.types.is_list(column.type) and not self._lists_as_texts:
            column = column.flatten()
        if pa.types.is_nested(column.type) or pa.types.is_temporal(column.type):
            return False
        if not pa.types.is_floating(column.type):
            return True
        large = compute.greater_equal(compute.abs(column), EXACT)
        return not compute.any(large).as_py()


def _is_plain(row: bytes) -> bool:
    row = row.strip()
    is_object = row.startswith(b"{") and row.endswith(b"}")
    return is_object and row.count(b"[") + row.count(b"{") < _MOST_BRACKETS


def _objects(rows: Sequence[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The object of each row, and why some have none."""
    objects: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    for place, row in enumerate(rows):
        try:
            objects.append(_object(row))
        except RecursionError:
            objects.append({})
            bad[place] = "its lists or objects are nested too deep"
        except ValueError as error:
            objects.append({})
            bad[place] = str(error)
    return objects, bad


def _object(row: bytes) -> dict[str, Any]:
    try:
        found = json.loads(
            row.removeprefix(b"\xef\xbb\xbf").decode(),
            object_pairs_hook=_unique,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no object of JSON")  # noqa: TRY004  the row is at fault, not a program
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key '{twice}' is there twice")
    return found


def _finite(text: str) -> float | TooLarge:
    number = float(text)
    return TooLarge(text) if math.isinf(number) else number
