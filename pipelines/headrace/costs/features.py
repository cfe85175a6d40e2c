"""What of a recipe the duration of a training or a trial may depend on; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.recipe.recipe import Recipe

Features = Mapping[str, float | str]
"""Numbers, and words that are the same or are not, by dotted key."""

_PARTS = ("data", "model", "trainer")
_NO_WORK = (
    "checkpoint_target", "fold", "monitor", "monitor_mode", "keep_checkpoints", "loggers", "name",
    "seed",
)  # fmt: skip
"""Keys whose values do not change how long training takes."""


def features_of(recipe: Recipe, ranks: int) -> dict[str, float | str]:
    """What the duration of a training may depend on.

    Args:
        recipe: The recipe.
        ranks: Ranks that train.
    """
    whole = recipe.model_dump(mode="json", by_alias=True, include=set(_PARTS))
    return {**dict(_flat("", whole)), "ranks": float(ranks)}


def features_of_point(values: Mapping[str, object]) -> dict[str, float | str]:
    """The same of a trial, as far as it is different from the recipe: values by dotted key."""
    return dict(_flat("", values))


def _flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, float | str]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key.rpartition(".")[2] in _NO_WORK:
            continue
        if isinstance(value, Mapping):
            yield from _flat(f"{key}.", value)
        elif isinstance(value, (bool, str)) or value is None:
            yield key, str(value)
        elif isinstance(value, (int, float)):
            yield key, float(value)
