"""Check overrides of users without a shell: from Airflow's form, REST and pages.

They may set keys of headrace's own models, which are typed and bounded. Below an open place, whose
values are passed on to other code, `RULES` say what an override may set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from headrace.errors import RecipeError, shortened
from headrace.recipe.overrides import key_parts, read_override
from headrace.recipe.recipe import Recipe
from headrace.recipe.train import TrainerSpec

_SPECIAL = re.compile(r"_(target|args|partial|recursive|convert|pairs)_")
_OF_FILES = {
    ("dataset", "query"),
    *(("train", name) for name in ("script", "module", "command", "folder")),
}
"""Keys of a query, and of a program and where it runs."""
_ANYTHING = (object, Any, JsonValue)


class Rule(Enum):
    """What an override may set below an open place."""

    SWITCH = "true and false"
    """Nothing below it; the place itself is on or off."""
    FIGURES = "numbers, true, false and null"
    """These, at any depth."""
    ARGUMENTS = "plain values of arguments; below them numbers, true, false and null"
    """Text, too, but only as an argument itself, or in a list that is one: no mapping is passed."""
    KEYS = "keys of the recipe, each by its own rule"
    """Values by dotted key."""


RULES = {
    "data.augment.*": Rule.ARGUMENTS,
    "data.collate": Rule.ARGUMENTS,
    "data.dataset": Rule.ARGUMENTS,
    "data.sample_transforms.*": Rule.ARGUMENTS,
    "data.transforms.*": Rule.ARGUMENTS,
    "dataset.reader": Rule.ARGUMENTS,
    "evaluate.figures.*": Rule.ARGUMENTS,
    "evaluate.metrics.*": Rule.ARGUMENTS,
    "model": Rule.ARGUMENTS,
    "datamodule": Rule.ARGUMENTS,
    "suite.grid": Rule.KEYS,
    "suite.points.*": Rule.KEYS,
    "suite.search.pruner": Rule.ARGUMENTS,
    "suite.search.sampler": Rule.ARGUMENTS,
    "suite.search.space": Rule.KEYS,
    "suite.zip": Rule.KEYS,
    "train.function": Rule.ARGUMENTS,
    "trainer.callbacks.*": Rule.FIGURES,
    "trainer.compile": Rule.SWITCH,
    "trainer.extra": Rule.FIGURES,
    "trainer.loggers.*": Rule.FIGURES,
    "vars": Rule.FIGURES,
}
"""Each open place of a recipe; `*` stands for an entry of a list, or a name."""


class OpenPlace(NamedTuple):
    """An open place of a recipe."""

    name: str
    """As in `RULES`."""
    rest: tuple[str, ...]
    """Parts of a key below it."""


def check_from_outside(overrides: Sequence[str]) -> None:
    """Refuse overrides that need the rights of this account.

    Raises:
        RecipeError: An override sets `code`, holds an interpolation in any spelling, names a
            target, breaks the rule of an open place, or is malformed.
    """
    for text in overrides:
        _, key, value = read_override(text)
        shown = shortened(text)
        if key_parts(key)[0] == "code":
            raise RecipeError(
                f"The override '{shown}' sets 'code', which cannot be changed from Airflow",
                "Write it into a recipe file.",
            )
        if "${" in f"{key}={value!r}":
            raise RecipeError(
                f"The override '{shown}' holds an interpolation",
                "From Airflow only plain values are taken; write interpolations into a recipe.",
            )
        if (refused := next(_refused(key_parts(key), value), None)) is not None:
            raise RecipeError(
                f"The override '{shown}' sets '{'.'.join(refused)}', which only a recipe's file "
                "may set",
                "From Airflow no targets and programs are taken, for arguments of targets plain "
                "values, for "
                "those of callbacks, loggers and Lightning's Trainer numbers, true and false, and "
                "no options of PyTorch's compiler. Write it into a recipe file.",
            )


def check_figures(points: Iterable[Mapping[str, Any]], known: Iterable[Mapping[str, Any]]) -> None:
    """Refuse points that a user without a shell may not add to a suite from a terminal.

    The suite's recipe may pass text to any code: of text, only `known` values of a key are valid.
    """
    used = {f"{key}={value!r}" for point in known for key, value in point.items()}
    for key, value in (each for point in points for each in point.items()):
        if not _fits(Rule.FIGURES, (), value) and f"{key}={value!r}" not in used:
            raise RecipeError(
                f"'{key}' is {shortened(repr(value))}, and the suite was started in a terminal",
                f"From Airflow it takes {Rule.FIGURES.value}, and values that its trials have. Add "
                "others in a terminal: headrace suite add.",
            )


def place_of(parts: Sequence[str], annotation: Any = Recipe) -> OpenPlace | None:
    """Return the open place that a key of a recipe is in; None if models type all of it."""
    return next(_places(tuple(parts), annotation, ()), None)


def open_places(annotation: Any = Recipe, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every open place of a model."""
    for kind in _alternatives(annotation):
        if _is_open(kind):
            yield ".".join(path)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                yield from open_places(field.annotation, (*path, name))
        elif get_args(kind):
            yield from open_places(get_args(kind)[-1 if _is_mapping(kind) else 0], (*path, "*"))


def _refused(parts: tuple[str, ...], value: object) -> Iterator[tuple[str, ...]]:
    """Yield the keys that an override sets against the rules."""
    place = place_of(parts)
    rule = None if place is None else RULES[place.name]
    rest = () if place is None else place.rest
    if _SPECIAL.search(f"{'.'.join(parts)}={value}") is not None or parts[:2] in _OF_FILES:
        yield parts
    elif rule is Rule.KEYS and rest:
        yield from _refused(rest, value)
    elif rule is not None and rest:
        yield from () if _fits(rule, rest, value) else (parts,)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            inner = key_parts(str(key)) if rule is Rule.KEYS else (*parts, str(key))
            yield from _refused(inner, each)
    elif isinstance(value, list):
        for each in value:
            yield from _refused(parts, each)
    elif rule is Rule.SWITCH and not isinstance(value, bool):
        yield parts


def _fits(rule: Rule, rest: tuple[str, ...], value: object) -> bool:
    """Whether a value below an open place follows its rule; of a list, all entries."""
    if isinstance(value, list):
        return rule is not Rule.SWITCH and all(_fits(rule, rest, each) for each in value)
    if rule is Rule.ARGUMENTS and len(rest) == 1:
        return not isinstance(value, Mapping)
    return rule is not Rule.SWITCH and isinstance(value, (bool, int, float, NoneType))


def _places(parts: tuple[str, ...], annotation: Any, path: tuple[str, ...]) -> Iterator[OpenPlace]:
    for kind in _alternatives(annotation):
        if _is_open(kind):
            yield OpenPlace(".".join(path), parts)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = {field.alias or name: field for name, field in kind.model_fields.items()}
            if parts and parts[0] in fields:
                inner = (*path, parts[0])
                yield from _places(parts[1:], fields[parts[0]].annotation, inner)
            elif parts and kind is TrainerSpec:  # what Lightning's Trainer gets besides
                yield OpenPlace("trainer.extra", parts)
        elif get_args(kind):
            is_named = parts and (_is_mapping(kind) or parts[0].isdecimal())
            inner_kind = get_args(kind)[-1 if _is_mapping(kind) else 0]
            yield from _places(parts[1:] if is_named else parts, inner_kind, (*path, "*"))


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of an annotation, without Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _alternatives(each)
    else:
        yield annotation


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_open(kind: Any) -> bool:
    """Whether a type has values that no model types."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_config.get("extra") == "allow"
    return _is_mapping(kind) and any(map(_holds_anything, get_args(kind)))


def _holds_anything(annotation: Any) -> bool:
    return annotation in _ANYTHING or any(map(_holds_anything, get_args(annotation)))
