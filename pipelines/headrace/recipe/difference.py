"""What differs between two recipes, key by key, and what may differ while a run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from pydantic import JsonValue

from headrace.recipe.base import PAIRS
from headrace.recipe.recipe import Recipe
from headrace.recipe.train import TrainSpec
from headrace.record import Record

CHANGEABLE = (
    "pack_role", "train.role", "train.nodes", "train.ranks_per_node", "train.timeout",
    "train.hang_timeout", "train.max_restarts", "retry.max_failures",
)  # fmt: skip
"""Keys that say where and how wide a recipe is run; all others decide what comes of it."""


class Change(Record):
    """One key that differs."""

    key: str
    """With dots, as in `trainer.max_epochs`."""
    before: str = ""
    """The value as JSON; empty where there is no such key."""
    after: str = ""
    """As `before`."""


class Resumption(Record):
    """What was changed when a run went on."""

    at: float
    """When, in seconds since the epoch."""
    changes: tuple[Change, ...]
    """Keys of the recipe; `site` for another site, or the same one read anew."""

    @property
    def words(self) -> str:
        """The same in a line, with the time here."""
        at = time.strftime("%d %b %H:%M", time.localtime(self.at))
        told = (f"{each.key} {each.before} -> {each.after}" for each in self.changes)
        return f"{at}: {', '.join(told)}"


def differences(before: Recipe, after: Recipe) -> tuple[Change, ...]:
    """The keys whose values differ, defaults filled in, in the order of the keys."""
    old, new = flattened(before), flattened(after)
    return tuple(
        Change(key=key, before=old.get(key, ""), after=new.get(key, ""))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def essence(recipe: Recipe) -> str:
    """What a recipe asks for, as JSON: the same wherever, however wide and in which suite."""
    names = [key.removeprefix("train.") for key in CHANGEABLE if key.startswith("train.")]
    usual = {name: TrainSpec.model_fields[name].default for name in names}
    changes = {
        "pack_role": Recipe.model_fields["pack_role"].default,
        "train": recipe.train.model_copy(update=usual),
    }
    return recipe.model_copy(update=changes).model_dump_json(
        by_alias=True, exclude={"suite", "retry"}
    )


def written(recipe: Recipe) -> dict[str, JsonValue]:
    """What a recipe says other than the defaults, by key; without its suite."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return dict(_flat("", {key: each for key, each in content.items() if key != "suite"}))


def flattened(recipe: Recipe) -> dict[str, str]:
    """All values of a recipe as JSON by dotted key, defaults filled in."""
    values = _flat("", recipe.model_dump(mode="json", by_alias=True))
    return {key: json.dumps(value) for key, value in values}


def _flat(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict) and value and PAIRS not in value:
        for name, each in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), each)
    else:
        yield key, value
