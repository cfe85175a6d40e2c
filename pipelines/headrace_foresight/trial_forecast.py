"""When a suite will be done, and in which order its trials wait: from what trials took."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace.states import StepState
from headrace.suites.schedule import Queue
from headrace.suites.suite_state import Board, TrialState
from headrace.suites.trial_order import Eta, elapsed_s
from headrace_foresight.forecast import (
    Features,
    Forecast,
    Running,
    durations,
    eta,
    features_of_point,
)

_EVERY_S = 10.0
_LEAST_S = 3.0
_SHARE = 0.02
"""Most of its time that the driver of a suite spends on looking ahead."""

_LEAST_DONE = 0.05
"""Trials that run tell what one takes when so much is done, as long as none has ended."""

_MOST_ASKED = 500
"""Of more trials that wait some stand for their neighbours, too."""

_MOST_KNOWN = 60

Value = TypeVar("Value")


class ForecastOrder:
    """See `headrace.suites.trial_order.TrialOrder`; thinks now and then, and when more is known."""

    def __init__(self) -> None:
        self._found: Eta | None = None
        self._thought_at = self._due_s = self._reorder_s = float("-inf")
        self._num_known = self._num_ordered = 0

    def left(self, board: Board, done: Callable[[TrialState], float], total: int) -> Eta | None:
        """Time that is left; None when nothing tells."""
        now_s, num_known = time.monotonic(), board.counts[StepState.SUCCEEDED.value]
        if now_s >= self._due_s or num_known > 2 * self._num_known:
            self._num_known = num_known
            self._found, self._thought_at = eta_of(board, done, total), now_s
            took_s = time.monotonic() - now_s
            self._due_s = now_s + (max(_EVERY_S, took_s / _SHARE) if self._found else 1.0)
        if self._found is None or not board.running:
            return None
        left_s = max(self._found.seconds - (now_s - self._thought_at), 0.0)
        return Eta(seconds=left_s, half_s=self._found.half_s)

    def reorder(self, board: Board, queue: Queue) -> None:
        """Put the queue in order if further trials have succeeded, and it is time."""
        began_s, num_known = time.monotonic(), board.counts[StepState.SUCCEEDED.value]
        if began_s < self._reorder_s or num_known == self._num_ordered:
            return
        self._num_ordered = num_known
        expected_s = expected_of(board)
        queue.reorder(lambda number: expected_s.get(number, 0.0))
        now_s = time.monotonic()
        self._reorder_s = now_s + max(_LEAST_S, (now_s - began_s) / _SHARE)


def eta_of(board: Board, done: Callable[[TrialState], float], total: int) -> Eta | None:
    """When all trials of a suite will be done; arguments as of `TrialOrder.left`."""
    under_way = [(row, elapsed_s(row), done(row)) for row in board.running.values()]
    known = known_of(board.rows.values()) or [
        (_features(row), elapsed_s / share)
        for row, elapsed_s, share in under_way
        if share >= _LEAST_DONE
    ]
    waiting = board.waiting()
    some = _some_of(waiting, _MOST_ASKED)
    found = durations(known, [_features(row) for row, *_ in under_way] + list(map(_features, some)))
    if not found or not under_way:
        return None
    running = [
        Running(forecast=forecast, elapsed_s=elapsed_s, done=share)
        for forecast, (_, elapsed_s, share) in zip(found, under_way, strict=False)
    ]
    to_come = found[len(running) :] or found
    num_left = len(waiting) + max(total - len(board.rows), 0)
    left = [to_come[index * len(to_come) // num_left] for index in range(num_left)]
    return eta(left, len(running), running)


def expected_of(board: Board) -> dict[int, float]:
    """Seconds that waiting trials are expected to take, by number; empty when nothing tells."""
    waiting = board.waiting()
    found = durations(known_of(board.rows.values()), list(map(_features, waiting)))
    return {row.trial.number: each.seconds for row, each in zip(waiting, found, strict=False)}


def known_of(rows: Iterable[TrialState]) -> list[tuple[Features, float]]:
    """Features and seconds of trials that have succeeded, at once if there are such."""
    ended = [row for row in rows if row.state is StepState.SUCCEEDED and not row.pruned]
    told = [row for row in ended if row.attempts == 1] or ended
    usual_s = _usual_start_s(told)
    return [
        (_features(row), row.took_s - max(row.start_s - usual_s, 0.0))
        for row in _some_of(told, _MOST_KNOWN)
    ]


def around_s(board: Board, took_s: float) -> float:
    """Seconds of a suite that are no trial's, with what its first trials waited at their start."""
    began, ended = board.span
    told = [row for row in board.rows.values() if row.state is StepState.SUCCEEDED]
    if not told:
        return 0.0
    waited_s = max(row.start_s for row in told) - _usual_start_s(told)
    return max(took_s - (ended - began), 0.0) + waited_s


def _usual_start_s(rows: Sequence[TrialState]) -> float:
    """Their lower quartile: most trials of a short suite are first ones."""
    return sorted(row.start_s for row in rows)[len(rows) // 4] if rows else 0.0


def forecasts_of(board: Board) -> tuple[list[Forecast], list[Forecast]]:
    """What trials that have succeeded took, and what all others will, as far as that is known."""
    told = [row for row in board.rows.values() if row.state is StepState.SUCCEEDED]
    left = [row for row in board.rows.values() if row.state is not StepState.SUCCEEDED]
    taken = [Forecast(seconds=max(row.took_s, 1e-3)) for row in told]
    return taken, durations(known_of(told), list(map(_features, left)))


def _features(row: TrialState) -> Features:
    return features_of_point(row.trial.values)


def _some_of(values: Sequence[Value], most: int) -> Sequence[Value]:
    """Values at random places, always the same ones, in their order."""
    if len(values) <= most:
        return values
    places = random.Random(0).sample(range(len(values)), most)
    return [values[place] for place in sorted(places)]
