"""Hydra's multirun words, `model.lr=1e-3,1e-2 'seed=range(0,5)'`, as overrides and a suite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from headrace.errors import RecipeError
from headrace.recipe.overrides import check_size, names_several, parts_of, read_override
from headrace.recipe.suite import MAX_TRIALS
from headrace.suites.space import Sweep, read_words, too_many

Update = dict[str, JsonValue]
"""Keys of `suite` that are set."""


def parse(words: Sequence[str], *, trials: int | None = None) -> tuple[tuple[str, ...], Update]:
    """Part words that name several values of a key from ordinary overrides.

    Args:
        words: `key=value` as for `load_recipe`, or `key=` and what Hydra calls a sweep.
        trials: Points that a sampler proposes; all sweeps are its space then. Null: they are a
            grid, but an interval needs a sampler: `suite.search.trials` of the recipe counts.

    Returns:
        The overrides, as they are written, and what the sweeps set in `suite`: `grid`, `seeds`,
        `search`. Values of `seed` are repeats of each point.

    Raises:
        RecipeError: A word is no override, or a sweep that is not meant here.
    """
    check_size(words)
    plain: list[str] = []
    swept: dict[str, Sweep] = {}
    for word in words:
        sign, key, value = parts_of(word)
        sweep = None if sign == "~" else _sweep(key, value)
        if sweep is None:
            read_override(word)
            plain.append(word)
        elif key in swept:
            raise RecipeError(f"'{key}' is given twice", "Name all its values in one word.")
        else:
            swept[key] = sweep
    return tuple(plain), _update(swept, trials)


def as_overrides(update: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """What the sweeps set, as overrides of a recipe."""
    return tuple(f"suite.{key}={json.dumps(value)}" for key, value in update.items())


def _sweep(key: str, value: str) -> Sweep | None:
    if not any(sign in value for sign in ",("):
        return None
    try:
        sweep = read_words(key, value)
    except RecipeError:
        if names_several(value):
            raise
        return None  # YAML that Hydra's grammar does not know
    return sweep if sweep.is_several else None


def _update(swept: dict[str, Sweep], trials: int | None) -> Update:
    is_search = trials is not None or any(each.is_interval for each in swept.values())
    seeds = swept.pop("seed").values() if "seed" in swept else ()
    update: Update = {"seeds": list(seeds)} if seeds else {}
    if is_search:
        space: Update = {key: sweep.words for key, sweep in swept.items()}
        named: Update = {} if trials is None else {"trials": trials}
        return {**update, "search": {**({"space": space} if space else {}), **named}}
    grid = {key: list(sweep.values()) for key, sweep in swept.items()}
    count = math.prod(map(len, grid.values())) * max(1, len(seeds))
    if count > MAX_TRIALS:
        raise too_many(count)
    return {**update, **({"grid": dict(grid)} if grid else {})}
