"""Samplers and pruners of Optuna, by the names that recipes use."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.data.instantiate import Allowed, instantiate
from headrace.errors import RecipeError
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.recipe.suite import SearchSpec

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

MOST_OF_A_GENERATION = 50
"""Proposals of a generation of NSGA-II, as in Optuna; a fifth of all where these are few."""

OF_PAST_TRIALS = ("random", "tpe", "gp")
"""Samplers that keep nothing: they look at the study's trials only, however they came into it."""


def sampler_maker(
    spec: SearchSpec, allowed: Allowed, seed: int, num_objectives: int
) -> Callable[[int], BaseSampler]:
    """What makes the sampler for a proposal, of that proposal's own seed; a target is made once.

    Raises:
        RecipeError: The sampler seeks one objective only, or its package is not installed.
        TargetError: The site does not allow the target.
        UserCodeError: The target cannot be made.
    """
    if isinstance(spec.sampler, Target):
        make = instantiate(spec.sampler, allowed, "suite.search.sampler", partial=True)
        takes_seed = "seed" in inspect.signature(make).parameters
        is_seeded = "seed" in spec.sampler.as_config()
        made: BaseSampler = make(seed=seed) if takes_seed and not is_seeded else make()
        return lambda _: made
    check_sampler(spec, num_objectives)
    from optuna import samplers

    size = min(MOST_OF_A_GENERATION, max(2, spec.trials // 5))
    quiet: dict[str, Any] = {"warn_independent_sampling": False}
    known: dict[str, Callable[[int], BaseSampler]] = {
        "random": lambda own: samplers.RandomSampler(seed=own),
        "tpe": lambda own: samplers.TPESampler(seed=own, constant_liar=True),
        "gp": lambda own: samplers.GPSampler(seed=own),
        "cmaes": lambda own: samplers.CmaEsSampler(seed=own, **quiet),
        "nsgaii": lambda own: samplers.NSGAIISampler(seed=own, population_size=size),
        "qmc": lambda own: samplers.QMCSampler(
            scramble=True, seed=seed, independent_sampler=samplers.RandomSampler(own), **quiet
        ),
    }
    return known[spec.sampler]


def check_sampler(spec: SearchSpec, num_objectives: int) -> None:
    """Refuse a sampler that cannot seek so many objectives, or is not installed.

    Raises:
        RecipeError: It is so.
    """
    if spec.sampler != "cmaes":
        return
    if num_objectives > 1:
        raise RecipeError(
            "suite.search.sampler cmaes seeks one objective", "For several: tpe, gp or nsgaii."
        )
    if importlib.util.find_spec("cmaes") is None:
        raise RecipeError(
            "suite.search.sampler cmaes needs the package cmaes, which is not installed",
            "Install it where suites are asked for and where they run: pip install cmaes.",
        )


def make_pruner(recipe: Recipe, spec: SearchSpec, allowed: Allowed) -> BasePruner:
    """The pruner of a search; its steps are validations, from 1.

    Raises:
        TargetError: The site does not allow the target.
        UserCodeError: The target cannot be made.
    """
    from optuna import pruners

    if isinstance(spec.pruner, Target):
        made: BasePruner = instantiate(spec.pruner, allowed, "suite.search.pruner")
        return made
    most = max(1, recipe.trainer.max_epochs // recipe.trainer.val_every_epochs)
    known: dict[str, Callable[[], Any]] = {
        "none": pruners.NopPruner,
        "median": pruners.MedianPruner,
        "asha": lambda: pruners.SuccessiveHalvingPruner(min_resource=1),
        "hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=most),
    }
    pruner: BasePruner = known[spec.pruner]()
    return pruner
