"""Types of columns whose cells are texts or values of JSON, and their exact conversion.

All values of a column choose its type. A value is converted exactly, or it is a misfit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv

from headrace.fields.exact import NUMBER, WHOLE, number_of
from headrace.files.manifest import ColumnNote

BOOL: Final = "bool"
INT: Final = "int64"
FLOAT: Final = "float64"
COMMA: Final = "float64 with decimal commas"
TEXT: Final = "text"
ARRAY: Final = "array"
BOOLS: Final = "array of bool"
JSON: Final = "json"
LISTS = (ARRAY, BOOLS)

Cells: TypeAlias = Any
"""Cells of a column: texts in an Arrow array, or a list of Python objects of JSON."""

_ENOUGH = 0.9
"""Share of the values that fit a type, so that the others are mistakes."""
_EXACT = 2.0**53
"""float64 holds all whole numbers up to this one."""
_PLAIN: Mapping[type, str] = {bool: BOOL, float: FLOAT, str: TEXT}
_PYTHON = {BOOL: bool, INT: int, FLOAT: float, COMMA: float, TEXT: str}

_TYPES: Mapping[str, Any] = {
    BOOL: pa.bool_(), INT: pa.int64(), FLOAT: pa.float64(), COMMA: pa.float64(),
    TEXT: pa.string(), JSON: pa.string(), **dict.fromkeys(LISTS, pa.null()),
}  # fmt: skip
_BOOLS = pa.array(["true", "True", "TRUE", "false", "False", "FALSE"])
_MISSING = pa.array(
    ["", *(text for text in csv.ConvertOptions().null_values if "nan" not in text.lower())]
)
"""Texts that stand for no value in columns of numbers: Arrow's, without `nan`."""

_WHOLE, _NUMBER = f"^({WHOLE})$", f"^({NUMBER})$"
_WITH_COMMA = r"^[+-]?(0|[1-9][0-9]*)(,[0-9]+)?$"
_COMMAS, _POINTS, _THOUSANDS = "commas", "points", "thousands"
_SIGNS = {
    _COMMAS: r"^[+-]?[0-9]+,([0-9]{1,2}|[0-9]{4,})$",
    _POINTS: r"^[+-]?[0-9]+\.([0-9]{1,2}|[0-9]{4,})$",
    _THOUSANDS: r"^[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}$",
}
"""Numbers whose only comma or point cannot stand between thousands, and those whose may."""
_LIKE = {
    "leading zeros": r"^[+-]?0[0-9]+$",
    "whole numbers beyond int64": r"^[+-]?[1-9][0-9]{18,}$",
    "dates or times": r"^([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}:[0-9]{2})",
    "whole numbers that float64 does not hold": r"^[+-]?[1-9][0-9]{15,17}$",
    "numbers in other forms": r"^[^0-9A-Za-z]*[0-9][0-9xX_.,' ]*[0-9a-fA-F]*\s*[^0-9A-Za-z]?$",
}
"""Texts that look like numbers or times, but are kept as texts."""


@dataclass(frozen=True)
class TooLarge:
    """A number of JSON that float64 or Python does not hold, as it is written."""

    text: str

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
    """

    written: bool
    commas: bool = False
    num_values: int = 0
    fits: Counter[str] = field(default_factory=Counter)
    looks: Counter[str] = field(default_factory=Counter)

    def add_objects(self, cells: list[Any]) -> None:
        """Count some cells of JSON."""
        types = Counter(map(type, cells))
        self.num_values += len(cells) - types[type(None)]
        self.fits.update({kind: types[each] for each, kind in _PLAIN.items()})
        if types.keys() - {*_PLAIN, type(None)}:
            others = [cell for cell in cells if cell is not None and type(cell) not in _PLAIN]
            kinds = [_kind_of(cell) for cell in others]
            self.fits.update(kinds)
            pairs = zip(others, kinds, strict=True)
            self.fits[FLOAT] += sum(kind == INT and float(cell) == cell for cell, kind in pairs)
            self.fits[BOOLS] += sum(map(_is_empty, others))

    @property
    def kind(self) -> str:
        """The type: the one that most values fit, or else text (of JSON)."""
        commas = [COMMA] if self.looks[_COMMAS] else []
        kinds = (BOOL, INT, FLOAT, *commas, TEXT, ARRAY, BOOLS)
        best = max(kinds, key=lambda kind: self.fits[kind])  # the first of several
        if self.num_values and self.fits[best] >= _ENOUGH * self.num_values:
            return best
        return TEXT if self.written else JSON

    def notes(self, column: str) -> list[ColumnNote]:
        """Return how the type was chosen, then what looks like another type."""
        kind, total = self.kind, self.num_values
        is_text = kind in (TEXT, JSON)
        fit = total if is_text else self.fits[kind]
        found = [ColumnNote(column=column, kind="type", count=fit, total=total, detail=kind)]
        numbers = max(self.fits[FLOAT], self.fits[COMMA])
        looks = [(look, self.looks[look]) for look in _LIKE if self.looks[look]]
        if is_text and self.fits[kind] < total and looks:
            look, count = max(looks, key=lambda item: item[1])
            found += [ColumnNote(column=column, kind="holds", count=count, detail=look)]
        elif is_text and self.fits[kind] < total and numbers:
            found += [ColumnNote(column=column, kind="numbers", count=numbers, total=total)]
        elif kind == FLOAT and self.looks[_THOUSANDS] and not self.looks[_POINTS]:
            found += [ColumnNote(column=column, kind="thousands", count=self.looks[_THOUSANDS])]
        return found


def add_texts(tallies: Mapping[str, Tally], cells: Mapping[str, Any]) -> None:
    """Count the cells of equally long columns of texts, all of these at once."""
    names, num_rows = list(cells), max(map(len, cells.values()), default=0)
    if not num_rows:
        return
    trimmed = pc.utf8_trim_whitespace(pa.concat_arrays(list(cells.values())))
    there = _sums(pc.invert(pc.is_in(trimmed, _MISSING)), num_rows)
    kinds = [FLOAT, INT, *([COMMA] if tallies[names[0]].commas else [])]
    counts = {kind: _sums(_text_values(trimmed, kind).is_valid(), num_rows) for kind in kinds}
    texts = np.flatnonzero(np.maximum(counts[FLOAT], counts[INT]) < there).tolist()
    signs = _SIGNS.items() if COMMA in kinds else ()
    looks = {sign: _like(trimmed, pattern, num_rows) for sign, pattern in signs}
    for number, name in enumerate(names):
        tallies[name].num_values += int(there[number])
        for counter, found in ((tallies[name].fits, counts), (tallies[name].looks, looks)):
            counter.update({key: int(each[number]) for key, each in found.items()})
    if texts:
        trimmed = pa.concat_arrays([trimmed.slice(at * num_rows, num_rows) for at in texts])
        bools = _sums(pc.is_in(trimmed, _BOOLS), num_rows)
        looks = {look: _like(trimmed, pattern, num_rows) for look, pattern in _LIKE.items()}
        for number, at in enumerate(texts):
            tally = tallies[names[at]]
            tally.fits[BOOL] += int(bools[number])
            tally.looks.update({look: int(each[number]) for look, each in looks.items()})


def _like(texts: Any, pattern: str, num_rows: int) -> NDArray[np.int64]:
    return _sums(pc.match_substring_regex(texts, pattern), num_rows)


def _sums(mask: Any, num_rows: int) -> NDArray[np.int64]:
    """Return how often an Arrow array of booleans is true, for each column of some rows."""
    flags = mask.to_numpy(zero_copy_only=False).reshape(-1, num_rows)
    return np.asarray(flags.sum(axis=1, dtype=np.int64))


def convert(columns: Sequence[Cells], kind: str) -> list[Converted]:
    """Return equally long columns in a type of `Tally.kind`; those of texts all at once."""
    if isinstance(columns[0], list):
        return [_convert_objects(cells, kind) for cells in columns]
    if kind == TEXT:
        empty = (pc.equal(cells, "") for cells in columns)
        pairs = zip(empty, columns, strict=True)
        return [Converted(pc.if_else(mask, None, cells)) for mask, cells in pairs]
    num_rows, texts = len(columns[0]), pa.concat_arrays(columns)
    trimmed = pc.utf8_trim_whitespace(texts)
    values = _text_values(trimmed, kind)
    misfits: list[dict[int, str]] = [{} for _ in columns]
    if values.null_count:
        wrong = pc.and_(values.is_null(), pc.invert(pc.is_in(trimmed, _MISSING)))
        for at in np.flatnonzero(wrong.to_numpy(zero_copy_only=False)).tolist():
            misfits[at // num_rows][at % num_rows] = _misfit(texts[at].as_py(), kind)
    slices = (values.slice(number * num_rows, num_rows) for number in range(len(columns)))
    return list(map(Converted, slices, misfits))


def _text_values(trimmed: Any, kind: str) -> Any:
    """Return texts as numbers or booleans of a type; null where they are none."""
    if kind == BOOL:
        known = pc.is_in(trimmed, _BOOLS)
        return pc.if_else(known, pc.equal(pc.utf8_lower(trimmed), "true"), None)
    if kind == COMMA:
        points = pc.replace_substring(trimmed, ",", ".")
        matches = pc.match_substring_regex(trimmed, _WITH_COMMA)
        return _numbers(pc.if_else(matches, points, "?"), FLOAT)
    return _numbers(trimmed, kind)


def _numbers(texts: Any, kind: str) -> Any:
    """Return texts as int64 or float64; those that pyarrow may round are converted one by one."""
    matches = pc.match_substring_regex(texts, _WHOLE if kind == INT else _NUMBER)
    texts = pc.utf8_ltrim(texts, "+")
    is_short = pc.less(pc.binary_length(texts), 19) if kind == INT else True
    plain = pc.and_(matches, is_short)
    values = pc.cast(pc.if_else(plain, texts, None), _TYPES[kind])
    again = pc.and_not(matches, plain)
    if kind == FLOAT:
        is_large = pc.greater_equal(pc.abs(values), _EXACT)
        again = pc.or_(is_large, pc.invert(pc.is_finite(values))).fill_null(False)
    at = np.flatnonzero(again.to_numpy(zero_copy_only=False))
    if not len(at):
        return values
    made = [_number(text, kind) for text in texts.take(pa.array(at)).to_pylist()]
    return pc.replace_with_mask(values, again, pa.array(made, values.type))


def _number(text: str, kind: str) -> int | float | None:
    number = number_of(text)
    if kind == INT:
        return number if isinstance(number, int) and -(2**63) <= number < 2**63 else None
    is_rounded = isinstance(number, int) and float(number) != number
    return None if number is None or is_rounded else float(number)


def _convert_objects(cells: Sequence[object], kind: str) -> Converted:
    if set(map(type, cells)) <= {_PYTHON.get(kind), type(None)}:
        with suppress(OverflowError, UnicodeEncodeError):  # beyond int64; half a surrogate pair
            return Converted(pa.array(cells, _TYPES[kind]))
    values: list[object] = []
    misfits: dict[int, str] = {}
    for place, cell in enumerate(cells):
        try:
            values.append(None if cell is None else _object_as(cell, kind))
        except ValueError as error:
            values.append(None)
            misfits[place] = str(error)
    found = values if kind in LISTS else pa.array(values, _TYPES[kind])
    return Converted(found, misfits)


def _object_as(cell: object, kind: str) -> object:
    found = _kind_of(cell)
    if kind == JSON:
        is_large = isinstance(cell, TooLarge)
        cell = str(cell) if is_large else json.dumps(cell, ensure_ascii=False, default=_refuse)
    elif kind == FLOAT and isinstance(cell, int) and found == INT and float(cell) == cell:
        return float(cell)
    elif found != kind and not (kind == BOOLS and _is_empty(cell)):
        raise ValueError(_misfit(cell, kind))
    if isinstance(cell, str) and not is_text(cell):
        raise ValueError(f"{cell[:80]!r} holds half of a surrogate pair")
    return _array(cell, kind) if isinstance(cell, list) else cell


def _refuse(cell: object) -> str:
    raise ValueError(f"{str(cell)[:80]} is too large for float64")


def _array(cell: list[Any], kind: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.array(cell, bool if kind == BOOLS else np.float64)
    except OverflowError:
        found = np.array(np.inf)
    except ValueError:
        raise ValueError("its lists are of different lengths") from None
    is_large = np.abs(found) >= _EXACT
    if is_large.any() and (np.array(cell, object)[is_large] != found[is_large]).any():
        raise ValueError("it holds whole numbers that float64 does not hold")
    return found


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
    """Return the type that fits one value of JSON; the narrowest of several."""
    if isinstance(cell, int) and not isinstance(cell, bool):
        return INT if -(2**63) <= cell < 2**63 else JSON
    if isinstance(cell, list):
        types = _types_in(cell)
        return ARRAY if types <= {int, float} else BOOLS if types == {bool} else JSON
    return _PLAIN.get(type(cell), JSON)


def _is_empty(cell: object) -> bool:
    """Return whether a cell is a list, or lists in one, without any value."""
    return isinstance(cell, list) and not _types_in(cell)


def _types_in(cells: list[Any]) -> set[type]:
    """Return the types of what lists, and lists in these, hold."""
    types: set[type] = set()
    waiting = [cells]
    while waiting:
        content = waiting.pop()
        types |= set(map(type, content))
        if list in types:
            waiting += [each for each in content if isinstance(each, list)]
    return types - {list}


def _misfit(cell: object, kind: str) -> str:
    text = repr(cell)
    return f"{text if len(text) <= 80 else f'{text[:80]}…'} is not {kind}"
