"""What the points of a suite are the product of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from headrace.errors import RecipeError
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import SuiteSpec
from headrace.suites.point_file import read_points
from headrace.suites.records import Point
from headrace.suites.space import domain_of

Axis = Sequence[Mapping[str, JsonValue]]
"""Values of one key, or of several together, of which each point has one."""

MAX_CHECKED = 200
"""Most recipes that are made to check the values of a suite."""

_FIXED = {
    "code": "All trials run the same code.",
    "dataset": "All trials share one packed dataset; for cross-validation: suite.folds: true.",
    "name": "Names of trials: suite.trial_name.",
    "pack": "All trials share one packed dataset.",
    "pack_role": "All trials share one packed dataset.",
    "suite": "A trial has no trials.",
    "train.role": "All trials share one lease.",
}
"""Keys that are the same for all trials, and why."""

_PARTS = ("grid", "zip", "points", "file", "search", "seeds")
"""Keys of a suite that name trials."""


def suite_of(recipe: Recipe) -> SuiteSpec:
    """The suite of a recipe.

    Raises:
        RecipeError: It names no trials.
    """
    suite = recipe.suite
    if suite is None or not (suite.folds or any(getattr(suite, part) for part in _PARTS)):
        raise RecipeError(
            f"Recipe '{recipe.name}' names no trials",
            f"Give several values, as in headrace sweep {recipe.name} data.global_batch_size=32,64 "
            "or in suite.grid of the recipe.",
        )
    return suite


def axes_of(suite: SuiteSpec) -> list[Axis]:
    """Grid, zip, and points with file, as far as they are there; none of a sampler's.

    Raises:
        RecipeError: The file cannot be used.
    """
    axes: list[Axis] = [[{key: value} for value in values] for key, values in suite.grid.items()]
    if suite.zip:
        rows = zip(*suite.zip.values(), strict=True)
        axes.append([dict(zip(suite.zip, row, strict=True)) for row in rows])
    listed = (*suite.points, *(read_points(suite.file) if suite.file else ()))
    return [*axes, listed] if listed else axes


def space_axes(suite: SuiteSpec) -> list[Axis]:
    """The ends of each key that a sampler chooses, or all its choices.

    Raises:
        RecipeError: The words of a space cannot be read.
    """
    space = suite.search.space if suite.search else {}
    return [[{key: end} for end in domain_of(key, words).ends] for key, words in space.items()]


def repeats_of(recipe: Recipe) -> list[Axis]:
    """Seeds and folds of each point."""
    suite = suite_of(recipe)
    axes: list[Axis] = []
    seeds = suite.seeds
    if isinstance(seeds, int):
        seeds = tuple(range(recipe.seed, recipe.seed + seeds))
    if seeds is not None:
        axes.append([{"seed": seed} for seed in seeds])
    if suite.folds:
        axes.append([{"data.fold": fold} for fold in range(recipe.named_dataset.folds or 0)])
    return axes


def joined(parts: Iterable[Mapping[str, JsonValue]]) -> Point:
    """One point of values of several axes."""
    return {key: value for part in parts for key, value in part.items()}


def samples(axes: Sequence[Axis]) -> Iterator[Point]:
    """Points that hold, all together, each value of each axis; of long axes some."""
    first = joined(axis[0] for axis in axes)
    yield first
    most = max(2, MAX_CHECKED // len(axes))
    for axis in axes:
        spread = (len(axis) - 1) / (most - 1) if len(axis) > most else 1
        for place in range(1, min(len(axis), most)):
            yield {**first, **axis[round(place * spread)]}


def texts(axes: Sequence[Axis]) -> Iterator[Point]:
    """Points that hold, all together, each value that is no number: it may be a path."""
    first = joined(axis[0] for axis in axes)
    seen = set()
    for each in (each for axis in axes for each in axis):
        own = {k: v for k, v in each.items() if v is not None and not isinstance(v, int | float)}
        written = json.dumps(own, sort_keys=True)
        if own and written not in seen:
            seen.add(written)
            yield {**first, **own}


def check_keys(axes: Sequence[Axis]) -> None:
    """Refuse keys that must be alike for all trials, and those that are set twice.

    Raises:
        RecipeError: There is such a key.
    """
    seen: set[str] = set()
    for axis in axes:
        own = {key for point in axis for key in point}
        for key in sorted(own):
            fixed = next((name for name in _FIXED if f"{key}.".startswith(f"{name}.")), None)
            if fixed is not None:
                raise RecipeError(f"'{key}' cannot differ between trials", _FIXED[fixed])
        twice = sorted(own & seen)
        if twice:
            raise RecipeError(
                f"'{twice[0]}' is set by two parts of the suite",
                "Name its values once: in grid, zip, points, file, space, seeds or folds.",
            )
        seen |= own
