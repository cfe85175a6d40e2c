"""Check overrides of users without a shell: from Airflow's form, REST and pages.

They may set keys of headrace's own models, which are typed and bounded. At a place whose values are
passed on to other code, `RULES` say what an override may set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple

from headrace.errors import RecipeError, shortened
from headrace.recipe.overrides import key_parts, read_override
from headrace.recipe.train import TrainerSpec

_SPECIAL = re.compile(r"_(target|args|partial|recursive|convert|pairs)_")


class Rule(Enum):
    """What an override may set at a place, and below it."""

    NOTHING = "nothing"
    """The place names code, a program or a query."""
    SWITCH = "true and false"
    """Nothing below it; the place itself is on or off."""
    FIGURES = "numbers, true, false and null"
    """These, at any depth."""
    ARGUMENTS = "plain values of arguments; below them numbers, true, false and null"
    """Text, too, but only as an argument itself, or in a list that is one: no mapping is passed."""
    KEYS = "keys of the recipe, each by its own rule"
    """Values by dotted key."""


RULES = {
    **dict.fromkeys((
        "code", "dataset.query", "train.command", "train.folder", "train.module", "train.script",
    ), Rule.NOTHING),
    **dict.fromkeys((
        "data.augment.*", "data.collate", "data.dataset", "data.sample_transforms.*",
        "data.transforms.*", "dataset.reader", "evaluate.figures.*", "evaluate.metrics.*", "model",
        "datamodule", "suite.search.pruner", "suite.search.sampler", "train.function",
    ), Rule.ARGUMENTS),
    **dict.fromkeys(
        ("suite.grid", "suite.points.*", "suite.search.space", "suite.zip"), Rule.KEYS,
    ),
    **dict.fromkeys(
        ("trainer.callbacks.*", "trainer.extra", "trainer.loggers.*", "vars"), Rule.FIGURES,
    ),
    "trainer.compile": Rule.SWITCH,
}  # fmt: skip
"""Places of a recipe whose values go to code of others; `*` is an entry of a list, or a name."""
_OF_TRAINER = {field.alias or name for name, field in TrainerSpec.model_fields.items()}
"""Keys of the Trainer that are not passed on to Lightning's."""


class OpenPlace(NamedTuple):
    """An open place of a recipe."""

    name: str
    """As in `RULES`."""
    rest: tuple[str, ...]
    """Parts of a key below it."""


def check_from_outside(overrides: Sequence[str]) -> None:
    """Refuse overrides that need the rights of this account.

    Raises:
        RecipeError: An override sets code or a program, holds an interpolation in any spelling,
            names a target, breaks the rule of an open place, or is malformed.
    """
    for text in overrides:
        _, key, value = read_override(text)
        shown = shortened(text)
        if "${" in f"{key}={value!r}":
            raise RecipeError(
                f"The override '{shown}' holds an interpolation",
                "From Airflow only plain values are taken; write interpolations into a recipe.",
            )
        if (refused := next(_refused(key_parts(key), value), None)) is not None:
            raise RecipeError(
                f"The override '{shown}' sets '{'.'.join(refused)}', which only a recipe's file "
                "may set",
                "From Airflow no code, targets and programs are taken, for arguments of targets "
                "plain values, for those of callbacks, loggers and Lightning's Trainer numbers, "
                "true and false, and no options of PyTorch's compiler. Write it into a recipe "
                "file.",
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


def place_of(parts: Sequence[str]) -> OpenPlace | None:
    """Return the open place that a key of a recipe is in; None if models type all of it."""
    if parts[0] == "trainer" and len(parts) > 1 and parts[1] not in _OF_TRAINER:
        return OpenPlace("trainer.extra", tuple(parts[1:]))
    for name in RULES:
        *place, last = name.split(".")
        above = [*place, *([] if last == "*" else [last])]
        if [*parts[: len(above)]] == above:
            return OpenPlace(name, tuple(parts[len(above) + (last == "*") :]))
    return None


def _refused(parts: tuple[str, ...], value: object) -> Iterator[tuple[str, ...]]:
    """Yield the keys that an override sets against the rules."""
    place = place_of(parts)
    rule = None if place is None else RULES[place.name]
    rest = () if place is None else place.rest
    is_special = _SPECIAL.search(f"{'.'.join(parts)}={value}") is not None
    if is_special or rule is Rule.NOTHING:
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
        has_entries = place is not None and place.name.endswith(".*")
        for index, each in enumerate(value):
            yield from _refused((*parts, str(index)) if has_entries else parts, each)
    elif rule is Rule.SWITCH and not isinstance(value, bool):
        yield parts


def _fits(rule: Rule, rest: tuple[str, ...], value: object) -> bool:
    """Whether a value below an open place follows its rule; of a list, all entries."""
    if isinstance(value, list):
        return rule is not Rule.SWITCH and all(_fits(rule, rest, each) for each in value)
    if rule is Rule.ARGUMENTS and len(rest) == 1:
        return not isinstance(value, Mapping)
    return rule is not Rule.SWITCH and isinstance(value, (bool, int, float, NoneType))
