"""Remaining time of a suite and the order of its trials, which another package may improve."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from statistics import NormalDist

from headrace.entry_points import load_group
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role
from headrace.record import Record
from headrace.states import StepState
from headrace.suites.suite_state import SuiteState, TrialState

GROUP = "headrace.forecast"
"""Entry point: a class that derives from `TrialOrder`."""


class Eta(Record):
    """Remaining time of a suite."""

    seconds: float
    """Median of the remaining time."""
    half_s: float
    """Half of the interval in which it lies with a probability of 0.8."""


class TrialOrder:
    """Keeps the order of the points, and expects the mean time of earlier trials for the others."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def left(
        self, suite_state: SuiteState, done: Callable[[TrialState], float], total: int
    ) -> Eta | None:
        """Return the remaining time; None if unknown.

        Args:
            suite_state: State of the trials.
            done: Share of a running trial that is done, 0 to 1.
            total: Number of trials, with those still to be added.
        """
        took = [
            each.took_s for each in suite_state.rows.values() if each.state is StepState.SUCCEEDED
        ]
        if not took or not suite_state.running:
            return None
        mean_s, places = statistics.fmean(took), len(suite_state.running)
        left_s = sum(max(mean_s - elapsed_s(each), 0.0) for each in suite_state.running.values())
        waiting = len(suite_state.waiting()) + max(total - len(suite_state.rows), 0)
        spread_s = statistics.stdev(took) if len(took) > 1 else mean_s
        half_s = NormalDist().inv_cdf(0.9) * spread_s * math.sqrt(waiting + places) / places
        return Eta(seconds=(left_s + waiting * mean_s) / places, half_s=half_s)

    def expected(self, suite_state: SuiteState) -> dict[int, float] | None:
        """Return the seconds of waiting trials by number, for a new order; None: keep the old."""
        return None

    def speeds(self, sites: Sequence[str]) -> dict[str, float]:
        """Return the speeds of sites relative to each other, by name; absent if unknown."""
        del sites
        return {}

    def start_s(self, site: str, role: Role) -> float:
        """Return the seconds until a first node of a site begins a trial: queue, boot, copies."""
        del site
        return 5.0 if role.is_here else role.start_timeout / 2


def elapsed_s(trial: TrialState) -> float:
    """Return the seconds of a running trial so far, with its earlier attempts."""
    began_at = time.time() if trial.started is None else trial.started.at
    return trial.took_s + max(time.time() - began_at, 0.0)


def trial_order(recipe: Recipe) -> TrialOrder:
    """Return the order that a package adds, the last by name if several do; else `TrialOrder`."""
    classes: list[type[TrialOrder]] = [TrialOrder, *load_group(GROUP).values()]
    return classes[-1](recipe)
