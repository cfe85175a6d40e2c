"""Remaining time of a suite and the order of its trials, which another package may improve."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from statistics import NormalDist

from headrace.entry_points import load_group
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.record import Record
from headrace.states import StepState
from headrace.suites.suite_state import SuiteState, TrialState

GROUP = "headrace.forecast"
"""Entry point: a class that derives from `TrialOrder`."""

ASSUMED_START_S = 300.0
"""Seconds from a request for nodes elsewhere to running work, if no earlier run shows it."""

_LEAST_DONE = 0.05
"""Share of a trial after which its own progress says when it ends."""

_LATE = 0.2
"""A trial that takes longer than expected is expected to go on for this share of its time."""


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
        self.expected_s: dict[int, float] = {}
        """Expected seconds of trials by number, at the first site; also of those that run."""

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

    def running_s(self, trial: TrialState, done: float, whole_s: float, speed: float) -> float:
        """Return the expected time left of a running trial.

        Args:
            trial: The trial.
            done: Share that is done, 0 to 1; 0 if unknown.
            whole_s: Its expected seconds at speed 1, if no forecast of it is known.
            speed: Speed of its site.
        """
        so_far_s = elapsed_s(trial)
        if done > _LEAST_DONE:
            return so_far_s * (1.0 / min(done, 1.0) - 1.0)
        whole_s = self.expected_s.get(trial.trial.number, whole_s) / speed
        return max(whole_s - so_far_s, _LATE * so_far_s)

    def speeds(
        self, site_names: Sequence[str], suite_state: SuiteState | None = None
    ) -> dict[str, float]:
        """Return the speeds of several sites, relative to the first; 1 if unknown."""
        return dict.fromkeys(site_names, 1.0)

    def start_s(self, site: Site, role_name: str) -> float:
        """Return the expected seconds from a request for a role's nodes until they begin a trial.

        The wait in a queue, boot and copies of the dataset are part of them.
        """
        return 0.0 if site.roles[role_name].is_here else ASSUMED_START_S


def elapsed_s(trial: TrialState) -> float:
    """Return the seconds of a running trial so far, with its earlier attempts."""
    began_at = time.time() if trial.started is None else trial.started.at
    return trial.took_s + max(time.time() - began_at, 0.0)


def trial_order(recipe: Recipe) -> TrialOrder:
    """Return the order that a package adds, the last by name if several do; else `TrialOrder`."""
    classes: list[type[TrialOrder]] = [TrialOrder, *load_group(GROUP).values()]
    return classes[-1](recipe)
