"""The order of a suite's waiting trials and its time left, forecast as often as it is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import StepState
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_order import Eta, TrialOrder
from headrace_foresight.pruning import rule_shares
from headrace_foresight.site_pace import speeds_of, start_of
from headrace_foresight.trial_forecast import eta_of, expected_of

_EVERY_S = 10.0
_LEAST_S = 3.0
_SHARE = 0.02
"""Largest share of its time that a suite's driver spends on forecasts."""

_STARTS_EVERY_S = 60.0


class ForecastOrder(TrialOrder):
    """Computes forecasts periodically, and when more is known."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._found: Eta | None = None
        self._thought_at = self._due_s = self._reorder_s = float("-inf")
        self._num_known = self._num_ordered = 0
        self._shares: tuple[float, ...] | None = None
        self._speeds: dict[str, float] = {}
        self._speeds_due_s = float("-inf")
        self._starts: dict[tuple[str, str], tuple[float, float]] = {}

    def left(
        self, suite_state: SuiteState, done: Callable[[TrialState], float], total: int
    ) -> Eta | None:
        """Return the time left; None if unknown."""
        now_s, num_known = time.monotonic(), suite_state.num_ended
        if now_s >= self._due_s or num_known > 2 * self._num_known:
            self._num_known = num_known
            self._found = eta_of(suite_state, done, total, self._rule(suite_state))
            self._thought_at = now_s
            took_s = time.monotonic() - now_s
            self._due_s = now_s + (max(_EVERY_S, took_s / _SHARE) if self._found else 1.0)
        if self._found is None or not suite_state.running:
            return None
        left_s = max(self._found.seconds - (now_s - self._thought_at), 0.0)
        return Eta(seconds=left_s, half_s=self._found.half_s)

    def _rule(self, suite_state: SuiteState) -> tuple[float, ...]:
        """Return shares by the rule of the pruner, once trials run."""
        if self._shares is None and suite_state.running:
            self._shares = rule_shares(self._recipe, len(suite_state.running))
        return self._shares or ()

    def expected(self, suite_state: SuiteState) -> dict[int, float] | None:
        """Return what waiting trials take, if further ones have succeeded, and it is time."""
        began_s, num_known = time.monotonic(), suite_state.counts[StepState.SUCCEEDED.value]
        if began_s < self._reorder_s or num_known == self._num_ordered:
            return None
        self._num_ordered = num_known
        expected_s = expected_of(suite_state, next(iter(self._speeds), ""))
        now_s = time.monotonic()
        self._reorder_s = now_s + max(_LEAST_S, (now_s - began_s) / _SHARE)
        return expected_s

    def speeds(
        self, site_names: Sequence[str], suite_state: SuiteState | None = None
    ) -> dict[str, float]:
        """Return the speeds of sites, by earlier work there and by this suite's trials."""
        began_s = time.monotonic()
        if began_s >= self._speeds_due_s:
            self._speeds = speeds_of(self._recipe, site_names, suite_state)
            now_s = time.monotonic()
            self._speeds_due_s = now_s + max(_EVERY_S, (now_s - began_s) / _SHARE)
        return self._speeds

    def start_s(self, site: Site, role_name: str) -> float:
        """Return the expected seconds until a role's nodes begin a trial, by earlier leases."""
        key, now_s = (site.name, role_name), time.monotonic()
        due_s, start_s = self._starts.get(key, (now_s, 0.0))
        if now_s >= due_s:
            found = start_of(self._recipe, site, role_name)
            start_s = super().start_s(site, role_name) if found is None else found
            self._starts[key] = (now_s + _STARTS_EVERY_S, start_s)
        return start_s
