"""Differences between two recipes, and the keys that a resumed run may change."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from headrace.recipe.base import PAIRS
from headrace.recipe.recipe import Recipe
from headrace.recipe.train import TrainSpec
from headrace.record import Record

CHANGEABLE = (
    "pack_role", "train.role", "train.nodes", "train.ranks_per_node", "train.timeout",
    "train.hang_timeout", "train.max_restarts", "retry.max_failures", "data.workers",
)  # fmt: skip
"""Keys of machines, processes and retries; all others change the results."""


class Change(Record):
    """One key that differs."""

    key: str
    """Dotted, as in `trainer.max_epochs`."""
    before: str = ""
    """The value as JSON; empty if the key is missing."""
    after: str = ""
    """As `before`."""


class Resumption(Record):
    """Changes of a run when it was resumed."""

    at: float
    """Time in seconds since the epoch."""
    changes: tuple[Change, ...]
    """Keys of the recipe; `site` for another site, or the same site read again."""

    @property
    def words(self) -> str:
        """The changes in one line, with the local time."""
        at = time.strftime("%d %b %H:%M", time.localtime(self.at))
        changes = (f"{each.key} {each.before} -> {each.after}" for each in self.changes)
        return f"{at}: {', '.join(changes)}"


def differences(before: Recipe, after: Recipe) -> tuple[Change, ...]:
    """Return the keys whose values differ, in the order of the keys, defaults included."""
    return changes(flattened(before), flattened(after))


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the keys whose texts differ, in the order of the keys."""
    return tuple(
        Change(key=key, before=old.get(key, ""), after=new.get(key, ""))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def essence(recipe: Recipe) -> str:
    """Return a recipe as JSON without its suite and keys that do not change its results."""
    names = [key.removeprefix("train.") for key in CHANGEABLE if key.startswith("train.")]
    usual = {name: TrainSpec.model_fields[name].default for name in names}
    changes = {
        "pack_role": Recipe.model_fields["pack_role"].default,
        "train": recipe.train.model_copy(update=usual),
        "data": recipe.data.model_copy(update={"workers": "auto"}),
    }
    return recipe.model_copy(update=changes).model_dump_json(
        by_alias=True, exclude={"suite", "retry", "vars"}
    )


def written(recipe: Recipe) -> dict[str, JsonValue]:
    """Return the values of a recipe that are not defaults, by key, without its suite."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return dict(_flat("", {key: each for key, each in content.items() if key != "suite"}))


def flattened(recipe: Recipe) -> dict[str, str]:
    """Return all values of a recipe as JSON by dotted key, defaults included."""
    values = _flat("", recipe.model_dump(mode="json", by_alias=True))
    return {key: json.dumps(value) for key, value in values}


def _flat(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict) and value and PAIRS not in value:
        for name, each in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), each)
    else:
        yield key, value
