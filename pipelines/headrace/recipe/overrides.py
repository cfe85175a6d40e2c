"""Overrides of recipes: `key=value`, `+key=value`, `~key`, as in Hydra."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from headrace.errors import RecipeError, nearest, shortened
from headrace.recipe.yaml_text import parsed

_SIGNS = ("++", "+", "~")
_NOWHERE = object()
MAX_CHARS = 64 * 1024
"""Longest overrides of a request, all of them together, in characters."""

MAX_OVERRIDES = 500
"""Most overrides of a request."""

MAX_VALUES = 2000
"""Most values in the overrides of a request."""

MAX_KEY_PARTS = 32
"""Most parts of a key, as `a.b` has two."""

MAX_KEY_CHARS = 500
"""Longest key, in characters."""

_PARTS = re.compile(r"[^.\[\]]+")
_BEFORE_VALUES = re.compile(r"[,\n\[{]|\$\{")
_SEVERAL = re.compile(r"(choice|range|interval|glob|tag|sort|shuffle)\(.*\)|.*,.*", re.DOTALL)


class Override(NamedTuple):
    """An override, read."""

    sign: str
    """`++`, `+`, `~` or nothing."""
    key: str
    value: Any


def apply(config: Any, change: Override) -> None:
    """Apply an override to an OmegaConf configuration, in place.

    Raises:
        RecipeError: It does not fit what is there.
    """
    sign, key, value = change
    _check_key(key)
    try:
        if sign == "~":
            _take_out(config, key)
            return
        if sign == "+" and OmegaConf.select(config, key, default=_NOWHERE) is not _NOWHERE:
            raise RecipeError(f"'+{key}' adds what is there", f"To change it: {key}=VALUE.")
        OmegaConf.update(config, key, value, merge=not isinstance(value, list), force_add=True)
    except (OmegaConfBaseException, ValueError, IndexError, TypeError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        why = why.replace("DictConfig", "a mapping").replace("ListConfig", "a list")
        raise RecipeError(
            f"The override of '{key}' does not fit what is there: {why}",
            "Entries of a list are numbered: data.transforms[0].maximum=1.",
        ) from None


def _take_out(config: Any, key: str) -> None:
    parent, _, name = key.rpartition(".")
    holder = OmegaConf.select(config, parent) if parent else config
    if not isinstance(holder, DictConfig) or name not in holder:
        names = [str(each) for each in holder] if isinstance(holder, DictConfig) else []
        raise RecipeError(
            f"'~{key}' takes out what is not there",
            f"{nearest(name, names)} A key that the file leaves out has its default; a list is "
            "written anew: trainer.callbacks=[].",
        )
    del holder[name]


def read_override(text: str) -> Override:
    """Read an override.

    Raises:
        RecipeError: It is of another form, its value is no YAML, or it names several values.
    """
    sign, key, value = parts_of(text)
    if sign == "~":
        return Override(sign, key, None)
    try:
        read = parsed(f"value: {value}", is_plain=True)["value"]
    except YAMLError as error:
        raise RecipeError(
            f"The value of the override '{shortened(text)}' is not YAML: {error}"
        ) from None
    if read == value.strip() and names_several(value):
        raise RecipeError(
            f"The override '{shortened(text)}' names several values, and a run has one",
            f"For a trial of each: headrace sweep RECIPE '{shortened(text)}'. "
            f"A list has brackets, {key}=[1,2]; a text with commas has quotes, \"{key}='a,b'\".",
        )
    return Override(sign, key, read)


def parts_of(text: str) -> tuple[str, str, str]:
    """Sign, key and value of an override, as they are written.

    Raises:
        RecipeError: It is not of the form of one.
    """
    sign = next((each for each in _SIGNS if text.startswith(each)), "")
    key, equals, value = text.removeprefix(sign).partition("=")
    if bool(equals) == (sign == "~") or not all(key.split(".")):
        raise RecipeError(
            f"The override '{shortened(text)}' is not of the form key=value",
            "Write for example trainer.max_epochs=3. +key=value adds a key, ~key takes one out.",
        )
    _check_key(key)
    return sign, key, value


def _check_key(key: str) -> None:
    if (
        len(key) > MAX_KEY_CHARS
        or not key.isprintable()
        or len(_PARTS.findall(key)) > MAX_KEY_PARTS
    ):
        raise RecipeError(
            f"The key {shortened(repr(key))} is none of a recipe",
            f"A key has up to {MAX_KEY_PARTS} parts and {MAX_KEY_CHARS} characters that can be "
            "printed, as trainer.max_epochs.",
        )


def check_size(overrides: Sequence[str]) -> None:
    """Refuse overrides that are more than anyone writes.

    Raises:
        RecipeError: They are.
    """
    num_values = sum(len(_BEFORE_VALUES.findall(text)) for text in overrides)
    for what, count, most in (
        ("characters", sum(map(len, overrides)), MAX_CHARS),
        ("overrides", len(overrides), MAX_OVERRIDES),
        ("values", num_values, MAX_VALUES),
    ):
        if count > most:
            raise RecipeError(
                f"The overrides are {count:,} {what}; at most {most:,} are taken",
                "Write them into a recipe file; points of a suite into a CSV file: suite.file.",
            )


def names_several(value: str) -> bool:
    """Whether a plain text, without quotes and brackets, is Hydra's way to name several values."""
    return _SEVERAL.fullmatch(value.strip()) is not None
