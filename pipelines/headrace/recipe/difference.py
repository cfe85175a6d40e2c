"""What differs between two recipes, key by key."""

from __future__ import annotations

import json
from collections.abc import Iterator

from headrace.recipe.recipe import Recipe
from headrace.record import Record


class Change(Record):
    """One key that differs."""

    key: str
    """With dots, as in `trainer.max_epochs`."""
    before: str = ""
    """The value as JSON; empty where there is no such key."""
    after: str = ""
    """As `before`."""


def differences(before: Recipe, after: Recipe) -> tuple[Change, ...]:
    """The keys whose values differ, defaults filled in, in the order of the keys."""
    old, new = dict(_values(before)), dict(_values(after))
    return tuple(
        Change(key=key, before=old.get(key, ""), after=new.get(key, ""))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def _values(recipe: Recipe) -> Iterator[tuple[str, str]]:
    yield from _flat("", recipe.model_dump(mode="json", by_alias=True))


def _flat(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), each)
    else:
        yield key, json.dumps(value)
