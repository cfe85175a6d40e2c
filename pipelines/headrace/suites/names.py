"""Names of trials, by a template or by the values that vary."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import JsonValue

from headrace.errors import RecipeError
from headrace.recipe.base import from_json

MAX_CHARS = 120
"""Longest name."""

_UNSAFE = re.compile(r"[^\w.+=,-]+")
_WRITER = json.JSONEncoder(sort_keys=True)
_WIDE = re.compile(r"\d{3,}|[{}]")


def by_template(template: str, value_of: Callable[[str], Any]) -> str:
    """Return a name by a template such as `lr{model.lr:g}-seed{seed}`.

    Raises:
        RecipeError: The template cannot be filled in.
    """
    try:
        name = _Template(value_of).vformat(template, (), {})
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RecipeError(
            f"suite.trial_name is '{template}', which cannot be filled in: {error}",
            "Write keys in braces, and how numbers look after a colon: lr{model.lr:g}-seed{seed}.",
        ) from None
    return _safe(name)


def by_values(values: Mapping[str, JsonValue], left_out: Collection[str]) -> str:
    """Return a name such as `lr=0.001,seed=3`; empty if nothing varies."""
    shown = [key for key in values if key not in left_out]
    short = _short_keys(tuple(shown))
    return _safe(",".join(f"{short[key]}={_short(values[key])}" for key in shown))


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest unique ends of keys."""
    parts = {key: key.split(".") for key in keys}
    short = {}
    for key, own in parts.items():
        others = [other for name, other in parts.items() if name != key]
        counts = range(1, len(own) + 1)
        count = next((n for n in counts if all(own[-n:] != o[-n:] for o in others)), len(own))
        short[key] = ".".join(own[-count:])
    return short


_short_keys = lru_cache(maxsize=64)(short_keys)  # the same for all trials


def written(value: object) -> str:
    """Return a value as JSON, equal for equal values."""
    return _WRITER.encode(value)


def constant_keys(axes: Iterable[Sequence[Mapping[str, JsonValue]]]) -> set[str]:
    """Return the keys with one value in all points of their axis, which names leave out."""
    return {
        key
        for axis in axes
        for key in (axis[0] if axis else ())
        if len(axis) == 1 or all(key in each and each[key] == axis[0][key] for each in axis)
    }


class _Template(string.Formatter):
    def __init__(self, value_of: Callable[[str], Any]) -> None:
        self._value_of = value_of

    def get_field(self, field_name: str, args: object, kwargs: object) -> tuple[Any, str]:
        if not field_name:
            raise ValueError("a pair of braces is empty")
        return self._value_of(field_name), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        if _WIDE.search(format_spec):
            raise ValueError(f"'{format_spec}' is too wide")
        return str(super().format_field(value, format_spec) if format_spec else _short(value))


def _short(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping) and "_target_" in value:
        return str(value["_target_"]).rpartition(".")[2]
    return value if isinstance(value, str) else json.dumps(from_json(value))


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)[:MAX_CHARS].strip("_")
