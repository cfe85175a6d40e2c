"""Columns of an index that are fields: of which kind each is, and its values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from headrace.errors import DataError, RecipeError
from headrace.packing.samples import SourceField, Value

_WHOLE = re.compile(r"\s*[+-]?(0|[1-9][0-9]{0,17})\s*")
_NUMBER = re.compile(
    r"\s*[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*|\s*[+-]?(nan|inf)\s*",
    re.IGNORECASE,
)
_DTYPES = {bool: "bool", int: "int64", float: "float64"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Columns:
    """What the columns of an index hold, found out row by row.

    Args:
        named: Column by field, as the recipe says.
        numbers: Fields that must be numbers.
        every: Whether columns that are not named are fields as well.
    """

    def __init__(self, named: Mapping[str, str], numbers: Sequence[str], *, every: bool) -> None:
        self._named = dict(named)
        self._numbers = numbers
        self._every = every
        self._kinds: dict[str, str] = {}
        self._first: dict[str, int] = {}

    @property
    def wanted(self) -> list[str]:
        """Columns that must be there."""
        return list(self._named.values())

    def column_of(self, field: str) -> str:
        """Column of a field."""
        return self._named.get(field, field)

    def start(self, columns: Sequence[str]) -> None:
        """Begin with the columns that may be fields."""
        if self._every:
            taken = set(self._named.values())
            self._named |= {name: name for name in columns if name not in taken}

    def add(self, line: int, row: Mapping[str, object]) -> None:
        """Look at a row.

        Raises:
            DataError: It lacks a column.
        """
        for field, column in self._named.items():
            if column not in row:
                raise DataError(f"Line {line} of the index has no '{column}', but others have")
            kind = _kind(row[column])
            before = self._kinds.get(field, kind)
            self._kinds[field] = _both(before, kind)
            if kind == "null":
                self._first.setdefault(field, line)

    def fields(self, index: str) -> tuple[SourceField, ...]:
        """The fields; numbers last.

        Args:
            index: Name of the index file, for messages.

        Raises:
            RecipeError: A column's name cannot be that of a field.
            DataError: A column of numbers has a gap, or is not of numbers where it must be.
        """
        fields = [self._field(index, name, kind) for name, kind in self._kinds.items()]
        return tuple(sorted(fields, key=lambda field: field.kind == "value"))

    def _field(self, index: str, name: str, kind: str) -> SourceField:
        column = self.column_of(name)
        if not _NAME.fullmatch(name):
            raise RecipeError(
                f"Column '{name}' of {index} cannot be a field: its name is not of letters, "
                "digits, dots, hyphens and underscores",
                "Name the columns that count in dataset.fields, as in {text: 'My column'}.",
            )
        if name in self._numbers and kind not in _DTYPES.values():
            raise DataError(
                f"Column '{column}' of {index} holds values that are no numbers",
                "Correct them, or set dataset.label_kind to 'class'.",
            )
        if kind in _DTYPES.values():
            if name in self._first:
                raise DataError(
                    f"{index}, line {self._first[name]}: '{column}' has no value",
                    "Write a number (or nan) in every row, or leave the column out of "
                    "dataset.fields.",
                )
            return SourceField(name, "value", dtype=kind)
        return SourceField(name, "text", encoding="json" if kind == "json" else "")


class Cell(str):
    """Text of a CSV file, which may mean a number."""

    __slots__ = ()


def number_type(text: str) -> str:
    """`int64` or `float64` for text that is a number, else empty."""
    if _WHOLE.fullmatch(text):
        return "int64"
    return "float64" if _NUMBER.fullmatch(text) else ""


def as_value(field: SourceField, raw: object) -> Value:
    """A cell as the value of its field."""
    if field.kind == "value":
        return to_number(field.dtype, raw)
    if field.encoding == "json":
        return json.dumps(raw, ensure_ascii=False)
    return "" if raw is None else str(raw)


def to_number(dtype: str, raw: object) -> Value:
    """A cell as a number of a dtype."""
    if dtype == "bool":
        return bool(raw)
    return int(str(raw)) if dtype == "int64" else float(str(raw))


def _kind(raw: object) -> str:
    if isinstance(raw, Cell):
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
