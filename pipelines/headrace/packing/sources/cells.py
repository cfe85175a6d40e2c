"""Types of columns whose cells are texts or values of JSON, and their exact conversion.

A type is chosen by all values of a column. A value is converted exactly, or it is a misfit.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

BOOL: Final = "bool"
INT: Final = "int64"
FLOAT: Final = "float64"
COMMA: Final = "float64 with decimal commas"
TEXT: Final = "text"
ARRAY: Final = "array"
JSON: Final = "json"

Cells: TypeAlias = Any
"""Cells of a column: an Arrow array, or a list of Python objects of JSON."""

_ENOUGH = 0.9
"""Share of the values that fit a type, so that the others are mistakes."""
EXACT: Final = 2.0**53
"""float64 holds all whole numbers up to this one."""

_WHOLE = r"^[+-]?(0|[1-9][0-9]*)$"
_NUMBER = (
    r"^[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"
)
_WITH_COMMA = r"^[+-]?(0|[1-9][0-9]*)(,[0-9]+)?$"
_FRACTION = r"^[+-]?[0-9]+%s([0-9]{1,2}|[0-9]{4,})$"
_THREE = r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$"
_SHORT = r"^[+-]?[0-9]{1,18}$"
_LIKE = {
    "leading zeros": r"^[+-]?0[0-9]+$",
    "whole numbers beyond int64": r"^[+-]?[1-9][0-9]{18,}$",
    "dates or times": r"^([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}:[0-9]{2})",
    "whole numbers that float64 does not hold": r"^[+-]?[1-9][0-9]{15,17}$",
    "numbers in other forms": r"^[^0-9A-Za-z]*[0-9][0-9xX_.,' ]*[0-9a-fA-F]*\s*[^0-9A-Za-z]?$",
}
"""What texts look like that are no numbers, or are not kept as such."""

TRUE: Final = ("true", "True", "TRUE")
FALSE: Final = ("false", "False", "FALSE")


class TooLarge:
    """A number of JSON that float64 does not hold."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Converted:
    """Cells of a column in one type."""

    values: Cells
    """Arrow array, or a list of NumPy arrays; null where a cell is empty or does not fit."""
    misfits: Mapping[int, str] = field(default_factory=dict)
    """Why a cell does not fit, by its position."""


@dataclass
class Tally:
    """Counts how many values of a column fit each type.

    Attributes:
        written: Whether cells are texts that may mean numbers, as in CSV files.
        commas: Whether these may have decimal commas.
        has_commas: Whether one of these cannot be a comma between thousands.
        has_points: The same of points.
        in_threes: Whether a number has three digits behind its only comma or point.
    """

    written: bool
    commas: bool = False
    num_values: int = 0
    has_commas: bool = False
    has_points: bool = False
    in_threes: bool = False
    fits: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)

    def add(self, cells: Cells) -> None:
        """Count some cells."""
        if self.written and _is_text(cells):
            self._add_texts(cells)
        elif isinstance(cells, list):
            kinds = [_kind_of(cell) for cell in cells if cell is not None]
            self.num_values += len(kinds)
            self.fits.update(kinds)
            self.fits[FLOAT] += sum(type(c) is int and _is_exact(c) for c in cells)
        else:
            num = len(cells) - cells.null_count
            self.num_values += num
            kind = _kind_of_type(cells.type)
            self.fits[kind] += num
            if kind == INT:
                self.fits[FLOAT] += num - len(_inexact(cells))
                self.fits[COMMA] += num if self.commas else 0

    @property
    def kind(self) -> str:
        """The type: the one that most values fit, or else text (of JSON)."""
        kinds = (BOOL, INT, FLOAT, *([COMMA] if self.has_commas else []), TEXT, ARRAY)
        best = max(kinds, key=lambda kind: self.fits[kind])  # the first of several
        if self.num_values and self.fits[best] >= _ENOUGH * self.num_values:
            return best
        return TEXT if self.written else JSON

    @property
    def remark(self) -> str:
        """How the type was chosen, where not all values fit it, or look like another."""
        num, numbers = self.fits[self.kind], max(self.fits[FLOAT], self.fits[COMMA])
        if self.kind in (TEXT, JSON) and num < self.num_values:
            look, times = max(self.looks.items(), key=lambda item: item[1], default=("", 0))
            if times:
                return f"holds {look}"
            return f"{numbers:,} of {self.num_values:,} values are numbers" if numbers else ""
        if num < self.num_values:
            return f"{num:,} of {self.num_values:,} values fit"
        doubtful = self.in_threes and self.kind == FLOAT and not self.has_points
        return "points may stand between thousands" if doubtful else ""

    def _add_texts(self, texts: Any) -> None:
        from pyarrow import compute

        trimmed = compute.utf8_trim_whitespace(texts)
        num = len(texts) - _count(compute.is_in(trimmed, _missing()))
        self.num_values += num
        floats = _text_values(trimmed, FLOAT)
        num_floats = len(floats) - floats.null_count
        self.fits[FLOAT] += num_floats
        num_whole = _count(compute.match_substring_regex(trimmed, _WHOLE))
        if num_whole:
            whole = _text_values(trimmed, INT)
            num_whole = len(whole) - whole.null_count
            self.fits[INT] += num_whole
        if self.commas:
            self.fits[COMMA] += _count(compute.match_substring_regex(trimmed, _WITH_COMMA))
            self.has_commas |= _any(trimmed, _FRACTION % ",")
            self.has_points |= _any(trimmed, _FRACTION % r"\.")
            self.in_threes |= _any(trimmed, _THREE)
        if max(num_floats, num_whole) == num:
            return
        self.fits[BOOL] += _count(compute.is_in(trimmed, _bools()))
        for look, pattern in _LIKE.items():
            self.looks[look] += _count(compute.match_substring_regex(trimmed, pattern))


def convert(cells: Cells, kind: str, *, written: bool) -> Converted:
    """Cells in a type of `Tally.kind`."""
    if not written or not _is_text(cells):
        return _convert_json(cells, FLOAT if kind == COMMA else kind)
    if kind == TEXT:
        from pyarrow import compute

        return Converted(compute.if_else(compute.equal(cells, ""), None, cells))
    return _convert_texts(cells, kind)


def _convert_texts(texts: Any, kind: str) -> Converted:
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(texts)
    values = _text_values(trimmed, kind)
    if not values.null_count:
        return Converted(values)
    wrong = compute.and_(
        compute.is_null(values), compute.invert(compute.is_in(trimmed, _missing()))
    )
    at = np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist()
    return Converted(values, {place: _no(texts[place].as_py(), kind) for place in at})


def _text_values(trimmed: Any, kind: str) -> Any:
    """Texts as numbers or booleans of a type; null where they are none."""
    import pyarrow as pa
    from pyarrow import compute

    if kind == BOOL:
        known = compute.is_in(trimmed, _bools())
        return compute.if_else(known, compute.equal(compute.utf8_lower(trimmed), "true"), None)
    if kind == INT:
        return _as_numbers(trimmed, _WHOLE, _SHORT, pa.int64(), _whole)
    if kind == COMMA:
        points = compute.replace_substring(trimmed, ",", ".")
        matches = compute.match_substring_regex(trimmed, _WITH_COMMA)
        trimmed = compute.if_else(matches, points, "?")
    return _as_numbers(trimmed, _NUMBER, _NUMBER, pa.float64(), _fraction)


def _as_numbers(
    texts: Any, pattern: str, plain: str, kind: Any, single: Callable[[str], object]
) -> Any:
    """Texts of a pattern as numbers, others as null; `single` converts what is not plain.

    A result that is large, or not finite, is made once more by `single`, which is exact.
    """
    import pyarrow as pa
    from pyarrow import compute

    matches = compute.match_substring_regex(texts, pattern)
    is_plain = matches if plain == pattern else compute.match_substring_regex(texts, plain)
    if compute.any(compute.starts_with(texts, "+")).as_py():
        texts = compute.utf8_ltrim(texts, "+")
    cast = compute.and_(matches, is_plain)
    values = compute.cast(compute.if_else(cast, texts, None), kind)
    again = compute.and_(matches, compute.invert(cast))
    if pa.types.is_floating(kind):
        large = compute.greater_equal(compute.abs(values), EXACT)
        special = compute.invert(compute.is_finite(values))
        again = compute.fill_null(compute.or_(large, special), False)
    at = np.flatnonzero(again.to_numpy(zero_copy_only=False))
    if not len(at):
        return values
    made = [single(text) for text in texts.take(pa.array(at)).to_pylist()]
    return compute.replace_with_mask(values, again, pa.array(made, kind))


def _whole(text: str) -> int | None:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def _fraction(text: str) -> float | None:
    number = float(text)
    if math.isinf(number):
        return number if "inf" in text.lower() else None
    if text.lstrip("-").isdecimal():
        return number if int(text) == int(number) else None
    return number


def _convert_json(cells: Cells, kind: str) -> Converted:
    import pyarrow as pa
    from pyarrow import types

    if isinstance(cells, list):
        return _convert_objects(cells, kind)
    if types.is_null(cells.type):
        return Converted(pa.nulls(len(cells), _arrow_types()[kind]))
    if _kind_of_type(cells.type) == kind and kind != ARRAY:
        return Converted(cells)
    if kind == FLOAT and types.is_integer(cells.type) and not len(_inexact(cells)):
        return Converted(cells.cast(pa.float64()))
    if kind == ARRAY and _kind_of_type(cells.type) == ARRAY:
        try:
            return Converted(cells.cast(_of_floats(cells.type)))
        except pa.ArrowInvalid:  # a whole number that float64 does not hold
            pass
    return _convert_objects(cells.to_pylist(), kind)


def _convert_objects(cells: Sequence[object], kind: str) -> Converted:
    import pyarrow as pa

    values: list[object] = []
    misfits: dict[int, str] = {}
    for place, cell in enumerate(cells):
        try:
            values.append(None if cell is None else _object_as(cell, kind))
        except ValueError as error:
            values.append(None)
            misfits[place] = str(error)
    found = values if kind == ARRAY else pa.array(values, _arrow_types()[kind])
    return Converted(found, misfits)


def _object_as(cell: object, kind: str) -> object:
    if kind == JSON:
        cell = json.dumps(cell, ensure_ascii=False, default=_refused)
    elif kind == FLOAT and type(cell) is int and _is_exact(cell):
        return float(cell)
    elif kind == ARRAY and isinstance(cell, list) and _kind_of(cell) == ARRAY:
        return _array(cell)
    elif _kind_of(cell) != kind:
        raise ValueError(_no(cell, kind))
    if isinstance(cell, str):
        _check_text(cell)
    return cell


def _refused(cell: object) -> str:
    raise ValueError(f"{cell} is too large for float64")


def _array(cell: list[Any]) -> NDArray[Any]:
    try:
        found = np.array(cell)
    except ValueError:
        raise ValueError("its lists are of different lengths") from None
    if found.dtype == bool:
        return found
    if (
        found.dtype.kind == "i" and not (np.abs(found) <= int(EXACT)).all()
    ) or found.dtype.kind in "uO":
        raise ValueError("it holds whole numbers that float64 does not hold")
    return found.astype(np.float64)


def _check_text(text: str) -> None:
    if not is_text(text):
        raise ValueError(f"{text[:80]!r} holds half of a surrogate pair, which is no text")


def is_text(text: str) -> bool:
    """Return whether a text is without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_rows(cells: Cells, bad: Mapping[int, str]) -> Cells:
    """Return cells but those of rows that cannot be read."""
    if not bad:
        return cells
    kept = [row for row in range(len(cells)) if row not in bad]
    if isinstance(cells, list):
        return [cells[row] for row in kept]
    return cells.take(np.array(kept, dtype=np.int64))


def _kind_of(cell: object) -> str:
    """The type that fits one value of JSON; the narrowest of several."""
    if isinstance(cell, bool):
        return BOOL
    if isinstance(cell, int):
        return INT if -(2**63) <= cell < 2**63 else JSON
    if isinstance(cell, float):
        return FLOAT
    if isinstance(cell, str):
        return TEXT
    return ARRAY if isinstance(cell, list) and _is_of_numbers(cell) else JSON


def _is_of_numbers(cells: Iterable[object]) -> bool:
    """Whether lists hold numbers, or lists of these, alone."""
    return all(
        _is_of_numbers(each) if isinstance(each, list) else isinstance(each, int | float)
        for each in cells
    )


def _kind_of_type(kind: Any) -> str:
    from pyarrow import types

    if types.is_list(kind):
        inner = kind.value_type
        is_number = types.is_null(inner) or _kind_of_type(inner) in (BOOL, INT, FLOAT, ARRAY)
        return ARRAY if is_number else JSON
    found = (name for name, each in _arrow_types().items() if each == kind and name != JSON)
    return next(found, JSON)


def _of_floats(kind: Any) -> Any:
    """A type of lists with whole numbers as floats."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return pa.list_(_of_floats(kind.value_type))
    return pa.bool_() if pa.types.is_boolean(kind) else pa.float64()


def _inexact(whole: Any) -> list[int]:
    """The whole numbers that float64 does not hold, of an Arrow array of int64."""
    from pyarrow import compute

    large = whole.filter(compute.greater_equal(compute.abs(whole), int(EXACT)))
    return [number for number in large.to_pylist() if not _is_exact(number)]


def _is_exact(number: int) -> bool:
    return abs(number) <= EXACT or (abs(number) < 2**63 and int(float(number)) == number)


def _no(cell: object, kind: str) -> str:
    text = repr(cell)
    return f"{text if len(text) <= 80 else f'{text[:80]}…'} is no {kind}"


@cache
def _arrow_types() -> Mapping[str, Any]:
    import pyarrow as pa

    numbers = {BOOL: pa.bool_(), INT: pa.int64(), FLOAT: pa.float64(), COMMA: pa.float64()}
    return {**numbers, TEXT: pa.string(), JSON: pa.string(), ARRAY: pa.null()}


def _is_text(cells: Cells) -> bool:
    import pyarrow as pa

    return not isinstance(cells, list) and pa.types.is_string(cells.type)


def _any(texts: Any, pattern: str) -> bool:
    from pyarrow import compute

    return bool(_count(compute.match_substring_regex(texts, pattern)))


def _count(mask: Any) -> int:
    """How often an Arrow array of booleans is true."""
    from pyarrow import compute

    return int(compute.sum(mask).as_py() or 0)


@cache
def _bools() -> Any:
    import pyarrow as pa

    return pa.array([*TRUE, *FALSE])


@cache
def missing_texts() -> list[str]:
    """Texts that stand for no value in columns of numbers: Arrow's, without `nan`."""
    from pyarrow import csv

    return ["", *(text for text in csv.ConvertOptions().null_values if "nan" not in text.lower())]


@cache
def _missing() -> Any:
    import pyarrow as pa

    return pa.array(missing_texts())
