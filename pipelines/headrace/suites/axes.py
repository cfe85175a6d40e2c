"""The axes whose product are the points of a suite, its file of points, and its conditions.

Conditions such as `model.depth > 4 and data.global_batch_size > 256` are evaluated without `eval`.
The same grammar gives numbers, as in `10 * (model.depth > 4) - seed`.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from headrace.errors import RecipeError
from headrace.recipe.base import to_json
from headrace.recipe.overrides import key_parts, read_override
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import MAX_KEYS, MAX_TRIALS, SuiteSpec
from headrace.suites.records import Point
from headrace.suites.values import domain_of, ends_of

Axis = Sequence[Mapping[str, JsonValue]]
"""Values of one key, or of several keys together; each point has one of them."""

MAX_CHECKED = 200
"""Most recipes that are made to check the values of a suite."""

_FIXED = {
    "code": "All trials run the same code.",
    "dataset": "All trials share one packed dataset; for cross-validation: suite.folds: true.",
    "name": "Names of trials: suite.trial_name.",
    "pack": "All trials share one packed dataset.",
    "pack_role": "All trials share one packed dataset.",
    "suite": "It holds for the whole suite; a list has brackets: suite.sites=[lab,box].",
    "train.role": "All trials share one lease.",
}
"""Keys that are the same for all trials, and why."""

_PARTS = ("grid", "zip", "points", "file", "search", "seeds")
"""Keys of a suite that name trials."""

Lookup = Callable[[str], Any]
"""Returns the value of a dotted key."""

_MOST_CHARS = 1000
"""Longest condition."""

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
_WORDS = {"true": True, "false": False, "null": None}
_VALID = "Valid: keys, numbers, texts, lists, comparisons, in, and, or, not, + - * / // %."

_INT = re.compile(r"[-+]?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


def suite_of(recipe: Recipe) -> SuiteSpec:
    """Return the suite of a recipe.

    Raises:
        RecipeError: The recipe names no trials.
    """
    suite = recipe.suite
    if suite is None or not (suite.folds or any(getattr(suite, part) for part in _PARTS)):
        raise RecipeError(
            f"Recipe '{recipe.name}' names no trials",
            f"Give several values, as in headrace sweep {recipe.name} data.global_batch_size=32,64 "
            "(in Airflow, in the field Overrides), or in suite.grid of the recipe.",
        )
    return suite


def axes_of(suite: SuiteSpec) -> list[Axis]:
    """Return the axes of grid, zip, and points with file, without those of a sampler.

    Raises:
        RecipeError: The file cannot be used.
    """
    axes: list[Axis] = [[{key: value} for value in values] for key, values in suite.grid.items()]
    if suite.zip:
        rows = zip(*suite.zip.values(), strict=True)
        axes.append([dict(zip(suite.zip, row, strict=True)) for row in rows])
    listed = (*suite.points, *(read_points(suite.file) if suite.file else ()))
    return [*axes, listed] if listed else axes


def space_axes(suite: SuiteSpec) -> list[Axis]:
    """Return the ends or choices of each key that a sampler chooses.

    Raises:
        RecipeError: The words of a space cannot be read.
    """
    space = suite.search.space if suite.search else {}
    return [[{key: end} for end in ends_of(domain_of(key, words))] for key, words in space.items()]


def repeats_of(recipe: Recipe) -> list[Axis]:
    """Return the axes of seeds and folds of each point."""
    suite = suite_of(recipe)
    axes: list[Axis] = []
    seeds = suite.seeds
    if isinstance(seeds, int):
        seeds = tuple(range(recipe.seed, recipe.seed + seeds))
    if seeds is not None:
        axes.append([{"seed": seed} for seed in seeds])
    if suite.folds:
        axes.append([{"data.fold": fold} for fold in range(recipe.named_dataset.folds or 0)])
    return axes


def joined(parts: Iterable[Mapping[str, JsonValue]]) -> Point:
    """Return a point of values of several axes."""
    return {key: value for part in parts for key, value in part.items()}


def samples(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield points that together hold each value of each axis; of long axes some."""
    yield joined(axis[0] for axis in axes)
    most = max(2, MAX_CHECKED // len(axes))
    for axis in axes:
        spread = (len(axis) - 1) / (most - 1) if len(axis) > most else 1
        for place in range(1, min(len(axis), most)):
            yield _with_others(axis[round(place * spread)], axis, axes)


def texts(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield points that together hold all values except numbers: they may be paths."""
    known = set()
    for own_axis, each in ((axis, each) for axis in axes for each in axis):
        own = {k: v for k, v in each.items() if v is not None and not isinstance(v, int | float)}
        written = json.dumps(own, sort_keys=True)
        if own and written not in known:
            known.add(written)
            yield _with_others(each, own_axis, axes)


def _with_others(part: Mapping[str, JsonValue], axis: Axis, axes: Sequence[Axis]) -> Point:
    """Return a part of an axis with the first parts of all other axes."""
    return joined((*(other[0] for other in axes if other is not axis), part))


def check_keys(axes: Sequence[Axis]) -> None:
    """Refuse keys that must be the same for all trials, and keys that are set twice.

    Raises:
        RecipeError: The first of them.
    """
    known: set[tuple[str, ...]] = set()
    for axis in axes:
        keys = sorted({key for point in axis for key in _keys(point)})
        own = {key_parts(key): key for key in keys}
        for parts, key in own.items():
            why = _FIXED.get(parts[0]) or _FIXED.get(".".join(parts[:2]))
            if why is not None:
                raise RecipeError(f"'{key}' cannot differ between trials", why)
        if twice := [key for key in keys if key_parts(key) in known or own[key_parts(key)] != key]:
            raise RecipeError(
                f"'{twice[0]}' is set by two parts of the suite",
                "Name its values once: in grid, zip, points, file, space, seeds or folds.",
            )
        known |= own.keys()


def _keys(point: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield the keys of a point, and those of mappings in its values."""
    for key, value in point.items():
        yield key
        yield from (f"{key}.{name}" for name in (value if isinstance(value, Mapping) else ()))


def read_points(file: str) -> tuple[Point, ...]:
    """Return the points of a file, values typed as in an override; empty cells set nothing.

    Raises:
        RecipeError: The file cannot be read, or a row does not fit its header.
    """
    path = Path(file).expanduser()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.reader(lines, strict=True)
            header = [key.strip() for key in next(rows, [])]
            _check_header(file, header)
            points: list[Point] = []
            for row in rows:
                if row:
                    points.append(_point(file, rows.line_num, header, row))
                if len(points) > MAX_TRIALS:
                    raise RecipeError(f"suite.file '{file}' has more than {MAX_TRIALS:,} rows")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecipeError(
            f"suite.file '{file}' cannot be read: {error}",
            f"Give a CSV file in UTF-8 with a header of keys. The working folder is {Path.cwd()}.",
        ) from None
    if not points:
        raise RecipeError(f"suite.file '{file}' has a header and no row")
    return tuple(points)


def _check_header(file: str, header: list[str]) -> None:
    if not header or not all(header):
        raise RecipeError(
            f"suite.file '{file}' begins with {header}",
            "Its first line has the key of each column: model.lr,trainer.max_epochs.",
        )
    if len(header) > MAX_KEYS:
        raise RecipeError(f"suite.file '{file}' has {len(header):,} columns; at most {MAX_KEYS}")
    twice = {key for key in header if header.count(key) > 1}
    if twice:
        raise RecipeError(f"suite.file '{file}' has two columns of '{min(twice)}'")


def _point(file: str, line: int, header: list[str], row: list[str]) -> Point:
    if len(row) != len(header):
        raise RecipeError(
            f"suite.file '{file}' has {len(row)} values in line {line}, and {len(header)} columns",
            "A value with a comma stands in double quotes.",
        )
    try:
        return {
            key: _value(key, cell) for key, cell in zip(header, row, strict=True) if cell.strip()
        }
    except RecipeError as error:
        raise RecipeError(f"suite.file '{file}', line {line}: {error.what}", error.hint) from None


@lru_cache(maxsize=4096)
def _value(key: str, cell: str) -> JsonValue:
    text = cell.strip()
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    value: JsonValue = to_json(read_override(f"{key}={text}").value)
    return value


class Condition:
    """A condition, parsed once and evaluated for many points.

    Args:
        text: The condition.
        key: Its key in the recipe.

    Raises:
        RecipeError: It is malformed.
    """

    def __init__(self, text: str, key: str = "suite.skip") -> None:
        self._text, self._key = text, key
        if len(text) > _MOST_CHARS:
            raise self._wrong(f"has {len(text)} characters; at most {_MOST_CHARS} are read")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._wrong(f"cannot be read: {error}") from None

    def holds(self, value_of: Lookup) -> bool:
        """Whether it holds for the values of a point.

        Raises:
            RecipeError: It cannot be evaluated, or has something that is not allowed.
        """
        return bool(self._evaluated(value_of))

    def number(self, value_of: Lookup) -> float:
        """Return its number for a point, 1 and 0 for true and false; raise as `holds`."""
        value = self._evaluated(value_of)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(f"gives {value!r}, which is not a number")
        return float(value)

    def _evaluated(self, value_of: Lookup) -> Any:
        try:
            return self._value(self._tree, value_of)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise self._wrong(f"cannot be evaluated: {error}") from None

    def _value(self, node: ast.expr, value_of: Lookup) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return self._known(node, value_of)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each, value_of) for each in node.elts]
        if isinstance(node, ast.BoolOp):
            values = (self._value(each, value_of) for each in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.Compare):
            return self._compared(node, value_of)
        return self._computed(node, value_of)

    def _known(self, node: ast.expr, value_of: Lookup) -> Any:
        key = ast.unparse(node)
        return _WORDS[key] if key in _WORDS else value_of(key)

    def _compared(self, node: ast.Compare, value_of: Lookup) -> bool:
        values = [self._value(each, value_of) for each in (node.left, *node.comparators)]
        pairs = zip(node.ops, values, values[1:], strict=False)
        return all(_COMPARE[type(op)](left, right) for op, left, right in pairs)

    def _computed(self, node: ast.expr, value_of: Lookup) -> Any:
        if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](self._value(node.operand, value_of))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            sides = self._value(node.left, value_of), self._value(node.right, value_of)
            if all(isinstance(side, int | float) for side in sides):
                return _ARITHMETIC[type(node.op)](*sides)
            raise TypeError(f"'{ast.unparse(node)}' computes with {sides[0]!r} and {sides[1]!r}")
        raise self._wrong(f"holds '{ast.unparse(node)}'")

    def _wrong(self, what: str) -> RecipeError:
        return RecipeError(f"The condition '{self._text[:200]}' of {self._key} {what}", _VALID)
