"""Points that somebody adds to a suite, in the words of `headrace sweep`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.errors import RecipeError
from headrace.recipe.overrides import read_override
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.suite import SuiteSpec
from headrace.suites.axes import Axis, axes_of, check_keys, joined
from headrace.suites.points import TrialMaker, check_trials, trial_recipe
from headrace.suites.records import Point, Trial
from headrace.suites.sweep_words import parse


def added_points(
    recipe: Recipe,
    source: Mapping[str, Any],
    site: Site,
    known: Iterable[Trial],
    words: Sequence[str],
) -> tuple[tuple[Point, ...], int]:
    """Points of words such as `model.lr=0.1,0.2` and `seed=3`: every combination.

    Args:
        recipe: The suite's.
        source: The same before interpolation.
        site: Where it runs.
        known: Trials that it has.
        words: What is different from its recipe.

    Returns:
        The points, and the number of their trials: each has all seeds and folds of the suite, if it
        names none itself.

    Raises:
        UserError: A word or a value cannot be used, names no values but an interval, or the suite
            has such a trial.
    """
    axes = _axes(words)
    points = tuple(joined(parts) for parts in itertools.product(*axes))
    trial_recipe(source, points[0])
    maker = TrialMaker(recipe, known)
    check_trials(source, axes, site, maker)
    num_trials = sum(1 for point in points for _ in maker.trials(point))
    if not num_trials:
        raise RecipeError("suite.skip leaves out all of them", "Name other values.")
    return points, num_trials


def _axes(words: Sequence[str]) -> list[Axis]:
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
    return axes
