"""The order of trials that wait: those that take longest first, as soon as something tells."""

from __future__ import annotations

import time

from headrace.states import StepState
from headrace.suites.board import Board
from headrace.suites.foresight import expected_of
from headrace.suites.schedule import Queue

_LEAST_S = 3.0
_SHARE = 0.02
"""Most of its time that the driver of a suite spends on ordering."""


class Order:
    """Puts trials in order now and then, when further ones have succeeded."""

    def __init__(self) -> None:
        self._due_s = float("-inf")
        self._num_known = 0

    def look(self, board: Board, queue: Queue) -> None:
        """Put the queue in order if it is time."""
        began_s, num_known = time.monotonic(), board.counts[StepState.SUCCEEDED.value]
        if began_s < self._due_s or num_known == self._num_known:
            return
        self._num_known = num_known
        expected_s = expected_of(board)
        queue.reorder(lambda number: expected_s.get(number, 0.0))
        now_s = time.monotonic()
        self._due_s = now_s + max(_LEAST_S, (now_s - began_s) / _SHARE)
