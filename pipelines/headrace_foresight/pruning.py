"""How long trials run before a pruner ends them, computed by the pruner without past trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.data.instantiate import Allowed
from headrace.recipe.base import Target
from headrace.recipe.recipe import Recipe
from headrace.suites.samplers import make_pruner

if TYPE_CHECKING:
    import optuna

_TRIALS, _VALIDATIONS, _REPEATS = 60, 100, 4
"""Most simulated trials; most validations, of more the first ones; repeats."""
_NOISE = 0.5
"""Spread between validations, relative to that between trials. An assumption."""


def pruner_of(recipe: Recipe) -> str | Target:
    """Return the pruner of a recipe's suite."""
    search = recipe.suite.search if recipe.suite else None
    return "none" if search is None else search.pruner


def rule_shares(recipe: Recipe, places: int) -> tuple[float, ...]:
    """Return the shares of their validations that trials of a search have; empty without pruning.

    Simulated trials differ from the first validation on, and report alternately. The effect of a
    user's own pruner is unknown here.

    Args:
        recipe: Recipe of the suite.
        places: Trials at once.
    """
    search = recipe.suite.search if recipe.suite else None
    if search is None or pruner_of(recipe) not in ("median", "asha", "hyperband"):
        return ()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return tuple(
        share
        for seed in range(_REPEATS)
        for share in _shares(
            optuna.create_study(pruner=make_pruner(recipe, search, Allowed(listed=()))),
            np.random.default_rng(seed),
            (min(search.trials, _TRIALS), places),
            max(recipe.trainer.max_epochs // recipe.trainer.val_every_epochs, 1),
        )
    )


def _shares(
    study: optuna.Study, random: np.random.Generator, trials: tuple[int, int], validations: int
) -> Iterator[float]:
    waiting, places = trials
    running: list[tuple[optuna.Trial, float, int]] = []
    while waiting or running:
        while waiting and len(running) < places:
            running.append((study.ask(), random.standard_normal(), 1))
            waiting -= 1
        trial, quality, step = running.pop(0)
        value = quality + _NOISE * random.standard_normal()
        trial.report(value, step)
        if trial.should_prune():
            yield step / validations
        elif step == min(validations, _VALIDATIONS):
            study.tell(trial, value)
            yield 1.0
        else:
            running.append((trial, quality, step + 1))
