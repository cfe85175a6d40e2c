"""When a suite will be done, and the order of its waiting trials: from what trials took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import StepState
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_order import Eta, TrialOrder, elapsed_s
from headrace_foresight.forecast import (
    Features,
    Forecast,
    Running,
    durations,
    eta,
    features_of_point,
)
from headrace_foresight.past_attempts import own_seconds, some_of, usual_start_s
from headrace_foresight.pruning import rule_shares

_EVERY_S = 10.0
_LEAST_S = 3.0
_SHARE = 0.02
"""Largest share of its time that a suite's driver spends on forecasts."""

_LEAST_DONE = 0.05
"""Progress after which running trials count as known, as long as no trial has ended."""

_RULE = 8
"""Number of trials that the pruner's rule counts as, beside ended trials."""

_MOST_ASKED = 500
"""Of more waiting trials, some represent their neighbours, too."""

_STARTS_EVERY_S = 60.0

SITE = "site"
"""Name of the feature with the site of a trial, in suites over several."""


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
        self.expected_s.update(expected_s)
        now_s = time.monotonic()
        self._reorder_s = now_s + max(_LEAST_S, (now_s - began_s) / _SHARE)
        return expected_s

    def speeds(
        self, site_names: Sequence[str], suite_state: SuiteState | None = None
    ) -> dict[str, float]:
        """Return the speeds of sites, by earlier work there and by this suite's trials."""
        from headrace_foresight.site_pace import speeds_of

        began_s = time.monotonic()
        if began_s >= self._speeds_due_s:
            self._speeds = speeds_of(self._recipe, site_names, suite_state)
            now_s = time.monotonic()
            self._speeds_due_s = now_s + max(_EVERY_S, (now_s - began_s) / _SHARE)
        return self._speeds

    def start_s(self, site: Site, role_name: str) -> float:
        """Return the expected seconds until a role's nodes begin a trial, by earlier leases."""
        from headrace_foresight.site_pace import start_of

        key, now_s = (site.name, role_name), time.monotonic()
        due_s, start_s = self._starts.get(key, (now_s, 0.0))
        if now_s >= due_s:
            found = start_of(self._recipe, site, role_name)
            start_s = super().start_s(site, role_name) if found is None else found
            self._starts[key] = (now_s + _STARTS_EVERY_S, start_s)
        return start_s


def eta_of(
    suite_state: SuiteState,
    done: Callable[[TrialState], float],
    total: int,
    rule: tuple[float, ...] = (),
) -> Eta | None:
    """Return when a suite will be done; see `TrialOrder.left`, for `rule` `shares_of`."""
    under_way = [(row, elapsed_s(row), done(row)) for row in suite_state.running.values()]
    known = known_of(suite_state.rows.values()) or [
        (_features(row), elapsed_s / share)
        for row, elapsed_s, share in under_way
        if share >= _LEAST_DONE
    ]
    waiting = suite_state.waiting()
    some = some_of(waiting, _MOST_ASKED)
    found = durations(known, [_features(row) for row, *_ in under_way] + list(map(_features, some)))
    if not found or not under_way:
        return None
    shares = shares_of(suite_state.rows.values(), known, rule)
    found = [replace(each, shares=shares) for each in found]
    running = [
        Running(forecast=forecast, elapsed_s=elapsed_s, done=share)
        for forecast, (_, elapsed_s, share) in zip(found, under_way, strict=False)
    ]
    to_come = found[len(running) :] or found
    num_left = len(waiting) + max(total - len(suite_state.rows), 0)
    left = [to_come[index * len(to_come) // num_left] for index in range(num_left)]
    return eta(left, len(running), running)


def shares_of(
    rows: Iterable[TrialState],
    known: Sequence[tuple[Features, float]],
    rule: tuple[float, ...] = (),
) -> tuple[float, ...]:
    """Return shares of their time after which trials ended, and more by the pruner's rule."""
    ended = [row for row in rows if row.state is StepState.SUCCEEDED]
    pruned = [row for row in ended if row.pruned]
    if not pruned and not rule:
        return ()
    whole = durations(known, list(map(_features, pruned)))
    ran = [min(row.took_s / each.seconds, 1.0) for row, each in zip(pruned, whole, strict=False)]
    return (*ran, *[1.0] * (len(ended) - len(pruned)), *some_of(rule, _RULE))


def expected_of(suite_state: SuiteState, site: str = "") -> dict[int, float]:
    """Return the expected seconds of waiting trials by number, at a site; empty if unknown."""
    waiting = suite_state.waiting()
    wanted = [{**_features(row), **({SITE: site} if site else {})} for row in waiting]
    found = durations(known_of(suite_state.rows.values()), wanted)
    return {row.trial.number: each.seconds for row, each in zip(waiting, found, strict=False)}


def known_of(rows: Iterable[TrialState]) -> list[tuple[Features, float]]:
    """Return features and seconds of trials that succeeded and were not ended early."""
    whole = [row for row in rows if row.state is StepState.SUCCEEDED and not row.pruned]
    return [(_features(row), seconds) for row, seconds in own_seconds(whole)]


def around_s(suite_state: SuiteState, took_s: float) -> float:
    """Return a suite's seconds outside of trials, and its first trials' wait at their start."""
    began, ended = suite_state.span
    done = [row for row in suite_state.rows.values() if row.state is StepState.SUCCEEDED]
    if not done:
        return 0.0
    waited_s = max(row.start_s for row in done) - usual_start_s(done)
    return max(took_s - (ended - began), 0.0) + waited_s


def forecasts_of(suite_state: SuiteState) -> tuple[list[Forecast], list[Forecast]]:
    """Return what successful trials took, and what all others will, as far as known."""
    done = [row for row in suite_state.rows.values() if row.state is StepState.SUCCEEDED]
    left = [row for row in suite_state.rows.values() if row.state is not StepState.SUCCEEDED]
    taken = [Forecast(seconds=max(row.took_s, 1e-3)) for row in done]
    return taken, durations(known_of(done), list(map(_features, left)))


def _features(row: TrialState) -> Features:
    at = {SITE: row.site} if row.site else {}
    return {**features_of_point(row.trial.values), **at}
