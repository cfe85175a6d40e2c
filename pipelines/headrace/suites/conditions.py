"""Conditions such as `model.depth > 4 and data.global_batch_size > 256`, judged without `eval`.

The same words may give a number, as `10 * (model.depth > 4) - seed` does.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from headrace.errors import RecipeError

Lookup = Callable[[str], Any]
"""Gives the value of a dotted key."""

MAX_CHARS = 1000
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


class Condition:
    """One condition, read once and judged for many points.

    Args:
        text: What it says.
        key: Where it stands in the recipe.

    Raises:
        RecipeError: It is no condition.
    """

    def __init__(self, text: str, key: str = "suite.skip") -> None:
        self._text, self._key = text, key
        if len(text) > MAX_CHARS:
            raise self._wrong(f"has {len(text)} characters; at most {MAX_CHARS} are read")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._wrong(f"cannot be read: {error}") from None

    def holds(self, value_of: Lookup) -> bool:
        """Whether it holds for the values that a point has.

        Raises:
            RecipeError: It cannot be judged, or holds something that is not allowed.
        """
        return bool(self._judged(value_of))

    def number(self, value_of: Lookup) -> float:
        """The number that it gives for a point, 1 and 0 for yes and no; raises as `holds`."""
        value = self._judged(value_of)
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(f"gives {value!r}, which is no number")
        return float(value)

    def _judged(self, value_of: Lookup) -> Any:
        try:
            return self._value(self._tree, value_of)
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise self._wrong(f"cannot be judged: {error}") from None

    def _value(self, node: ast.expr, value_of: Lookup) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return self._known(node, value_of)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each, value_of) for each in node.elts]
        if isinstance(node, ast.BoolOp):
            judged = (self._value(each, value_of) for each in node.values)
            return all(judged) if isinstance(node.op, ast.And) else any(judged)
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
