"""When a suite will be done, and the order of its waiting trials: from what trials took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.runs.prediction import Forecast
from headrace.states import StepState
from headrace.suites.suite_state import SuiteState, TrialState
from headrace.suites.trial_order import Eta, elapsed_s
from headrace_foresight.forecast import Features, Running, durations, eta, features_of_point
from headrace_foresight.past_attempts import own_seconds, some_of, usual_start_s

_LEAST_DONE = 0.05
"""Progress after which running trials count as known, as long as no trial has ended."""

_RULE = 8
"""Number of trials that the pruner's rule counts as, beside ended trials."""

_MOST_ASKED = 500
"""Of more waiting trials, some represent their neighbours, too."""

SITE = "site"
"""Name of the feature with the site of a trial, in suites over several."""


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
    found = [each.model_copy(update={"shares": shares}) for each in found]
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
