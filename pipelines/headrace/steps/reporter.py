"""Keeps `status.json` fresh while a step runs."""

from __future__ import annotations

import logging
import threading
from collections import deque

from headrace.states import StepState
from headrace.steps.context import StepContext
from headrace.steps.records import StepStatus
from headrace.storage.atomic import write_if_room

logger = logging.getLogger(__name__)

_WINDOW_S = 30.0


class Rate:
    """Units a second over the last half minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()
        self._unit = ""

    def add(self, at: float, done: float, unit: str) -> float | None:
        """Take in a reading and give the rate; None until there are two.

        Args:
            at: Time of the reading, seconds.
            done: Units done by then.
            unit: What is counted; another unit starts anew.
        """
        stands_still = bool(self._points) and done <= self._points[0][1]
        if unit != self._unit or stands_still:  # warming up does not count
            self._points.clear()
            self._unit = unit
        self._points.append((at, done))
        while self._points[0][0] < at - _WINDOW_S and len(self._points) > 2:
            self._points.popleft()
        span_s = at - self._points[0][0]
        gained = done - self._points[0][1]
        return gained / span_s if span_s > 0 and gained > 0 else None


class Reporter:
    """Writes the status of a step every second, from a thread of its own."""

    def __init__(self, context: StepContext, interval_s: float = 1.0) -> None:
        self._context = context
        self._interval_s = interval_s
        self._rate = Rate()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-status", daemon=True)

    def __enter__(self) -> Reporter:
        self.write(StepState.RUNNING)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def write(self, state: StepState) -> None:
        """Write the status once.

        Raises:
            OSError: It cannot be written.
        """
        progress = self._context.current
        if state is StepState.SUCCEEDED and progress.total is not None:
            progress = progress.model_copy(update={"done": progress.total})
        rate = self._rate.add(self._context.elapsed_s, progress.done, progress.unit)
        left = None if progress.total is None else max(progress.total - progress.done, 0)
        status = StepStatus(
            state=state,
            progress=progress,
            rate=rate,
            eta_s=left / rate if left is not None and rate else None,
            elapsed_s=self._context.elapsed_s,
            metrics=dict(self._context.metrics),
            restarts=tuple(self._context.restarts),
        )
        write_if_room(self._context.folder.status, status)

    def tell(self, state: StepState) -> None:
        """Write the status if that is possible: the work does not depend on it."""
        try:
            self.write(state)
        except OSError as error:
            logger.warning("The status could not be written: %s", error)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.tell(StepState.RUNNING)
