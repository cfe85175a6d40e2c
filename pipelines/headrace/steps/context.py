"""What a step function is given: its spec, recipe and site, and ways to tell how it goes.

That is kept in `status.json`, replaced every second, and `events.jsonl`, one JSON object a line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.clusters.lifetime import TELLING_S
from headrace.clusters.records import HostRecord
from headrace.errors import LeaseEndsError, StepCancelledError, StepError, StepTimedOutError
from headrace.files.atomic import read_record, write_if_room
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.files.machine import is_full
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.states import StepState
from headrace.steps.records import Progress, StepSpec, StepStatus

logger = logging.getLogger(__name__)

_WINDOW_S = 30.0


def resolved(run: RunFolder) -> tuple[Recipe, Site]:
    """The recipe and the site of a run, as they were when it began.

    Raises:
        StepError: One of them is not there.
    """
    recipe, site = read_record(run.recipe, Recipe), read_record(run.site, Site)
    if recipe is None or site is None:
        raise StepError(f"{run.path} holds no recipe.json or site.json")
    return recipe, site


@dataclass
class StepContext:
    """Handle of a running step, made by `headrace.steps.run`.

    Attributes:
        folder: The step's folder.
        spec: What was asked for.
        recipe: The resolved recipe of the run.
        site: The resolved site of the run.
    """

    folder: StepFolder
    spec: StepSpec
    recipe: Recipe
    site: Site
    started_at: float = field(default_factory=time.time)
    started_s: float = field(default_factory=time.monotonic)
    current: Progress = field(default_factory=Progress)
    metrics: dict[str, float] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def run_folder(self) -> RunFolder:
        """Folder of the run."""
        return RunFolder(Path(self.spec.run_folder))

    @property
    def lease_folder(self) -> LeaseFolder:
        """Folder of the lease the step runs in."""
        return LeaseFolder(self.folder.path.parent.parent)

    @cached_property
    def ends_at(self) -> float | None:
        """When the lease ends at the latest, seconds since the epoch; None when nobody told."""
        host = read_record(self.lease_folder.host, HostRecord)
        return None if host is None else host.ends_at

    @cached_property
    def _stop_s(self) -> float:
        """When the step ends for its lease's sake, on the clock of `started_s`."""
        if self.ends_at is None:
            return math.inf
        return self.started_s + self.ends_at - TELLING_S - self.started_at

    @property
    def elapsed_s(self) -> float:
        """Seconds since the driver started, whatever the clock was set to meanwhile."""
        return time.monotonic() - self.started_s

    def progress(self, done: float, total: float | None, unit: str, phase: str = "") -> None:
        """Tell how far the step is, as in `Progress`; cheap, and raises what `check` raises."""
        with self._lock:
            self.current = Progress(done=done, total=total, unit=unit, phase=phase)
        self.check()

    def report(self, **metrics: float) -> None:
        """Add figures to the status."""
        with self._lock:
            self.metrics.update(metrics)

    def restarted(self, why: str) -> None:
        """Tell, in status and events, that the step's processes are started again, and why."""
        with self._lock:
            self.restarts.append(why)
            number = len(self.restarts)
        self.event("restart", number=number, why=why)

    def event(self, name: str, **fields: object) -> None:
        """Append a structured event to `events.jsonl`."""
        append_event(self.folder.events, name, **fields)

    def check(self) -> None:
        """Raise when the step was cancelled, or its time or its lease's is over.

        Raises:
            StepCancelledError: Somebody asked the step to stop.
            LeaseEndsError: The lease is about to end.
            StepTimedOutError: The step ran past its time limit.
        """
        if self.folder.cancel.exists():
            raise StepCancelledError(f"Cancelled: {self.folder.cancel.read_text()}")
        if time.monotonic() > self._stop_s:
            raise LeaseEndsError(
                f"Step {self.spec.name} was not done when the time of lease "
                f"{self.lease_folder.lease_id} was over"
            )
        limit = self.spec.timeout_s
        if limit is not None and self.elapsed_s > limit:
            raise StepTimedOutError(f"Step {self.spec.name} ran past its limit of {limit:g} s")


def append_event(path: Path, name: str, **fields: object) -> None:
    """Append an event with its time in one write; a full disk costs the event, not the step."""
    line = json.dumps({"at": time.time(), "event": name, **fields}, default=str) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    except OSError as error:
        if not is_full(error):
            raise
        logger.warning("The event %s is not recorded: %s", name, error)
    finally:
        os.close(handle)


class Rate:
    """Units a second over the last half minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()
        self._unit = ""

    def add(self, at: float, done: float, unit: str) -> float | None:
        """Add a reading, at a time in seconds; gives the rate once there are two of a unit."""
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
    """Writes `status.json` of a step every second, from a thread of its own."""

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
        """Write the status once."""
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
