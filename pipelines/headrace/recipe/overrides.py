"""Overrides: `key=value` changes to a recipe, as somebody typed or sent them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from yaml import YAMLError

from headrace.errors import RecipeError, UserError
from headrace.recipe.yaml_text import parsed


@dataclass(frozen=True)
class Override:
    """One change: a dotted key and its plain value."""

    key: str
    value: Any


def parse_override(text: str, error_type: type[UserError] = RecipeError) -> Override:
    """A change as it was written.

    Raises:
        RecipeError: It is malformed, too large, or no plain YAML; of another type if one is given.
    """
    key, sign, value = text.partition("=")
    if not sign or not all(key.split(".")):
        raise error_type(
            f"The override '{text}' is not of the form key=value",
            "Write for example trainer.max_epochs=3.",
        )
    try:
        return Override(key, parsed(f"value: {value}", is_plain=True)["value"])
    except YAMLError as error:
        shown = text if len(text) < _SHOWN else f"{text[:_SHOWN]}…"
        raise error_type(f"The value of the override '{shown}' is not YAML: {error}") from None


def check_from_outside(overrides: Sequence[str]) -> None:
    """Refuse overrides that only those may give who may read what this account may.

    Raises:
        RecipeError: One sets `code`, holds an interpolation in any spelling, or is malformed.
    """
    for text in overrides:
        override = parse_override(text)
        if override.key.split(".")[0] == "code":
            raise RecipeError(
                f"The override '{text}' sets 'code', which cannot be changed from Airflow",
                "Write it into a recipe file.",
            )
        if any("${" in part for part in (override.key, *_strings(override.value))):
            raise RecipeError(
                f"The override '{text}' holds an interpolation",
                "From Airflow only plain values are taken; write interpolations into a recipe.",
            )


_SHOWN = 200


def _strings(value: Any) -> Iterator[str]:
    """All texts in plain values, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _strings(key)
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
