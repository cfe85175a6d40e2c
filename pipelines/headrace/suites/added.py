"""Points that somebody adds to a suite, in the words of `headrace sweep`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import RecipeError
from headrace.recipe.overrides import read_override
from headrace.recipe.suite import SuiteSpec
from headrace.suites.axes import MAX_CHECKED, Axis, axes_of, check_keys, joined
from headrace.suites.points import trial_recipe
from headrace.suites.records import Point
from headrace.suites.sweep_words import parse


def added_points(source: Mapping[str, Any], words: Sequence[str]) -> tuple[Point, ...]:
    """Points of words such as `model.lr=0.1,0.2` and `seed=3`: every combination.

    Args:
        source: The suite's recipe before interpolation.
        words: What is different from it.

    Raises:
        RecipeError: A word or a value cannot be used, or names no values but an interval.
    """
    plain, update = parse(words)
    if "search" in update:
        raise RecipeError(
            "An interval is no value", "Name the values to add, as in model.lr=0.01,0.02."
        )
    changes = [read_override(word) for word in plain]
    for change in changes:
        if change.sign:
            raise RecipeError(
                f"'{change.sign}{change.key}' is no value of a trial", f"Write {change.key}=VALUE."
            )
    axes: list[Axis] = [[{change.key: change.value}] for change in changes]
    seeds = update.pop("seeds", [])
    axes += axes_of(SuiteSpec.model_validate(update))
    axes += [[{"seed": seed} for seed in seeds]] if isinstance(seeds, list) and seeds else []
    check_keys(axes)
    points = tuple(joined(parts) for parts in itertools.product(*axes))
    for point in points[:MAX_CHECKED]:
        trial_recipe(source, point)
    return points
