"""What a step function is given: its spec, recipe and site, and ways to tell how it goes."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from headrace.errors import LeaseEndsError, StepCancelledError, StepError, StepTimedOutError
from headrace.leases.lifetime import TELLING_S
from headrace.leases.records import HostRecord
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.steps.events import append_event
from headrace.steps.records import Progress, StepSpec
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder, RunFolder, StepFolder


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
        """Tell how far the step is; cheap, call it as often as there is something new.

        Args:
            done: Units done.
            total: Units in all, None when unknown.
            unit: What is counted.
            phase: What goes on, in a few words.

        Raises:
            StepCancelledError: Somebody asked the step to stop.
            StepTimedOutError: The step ran past its time limit.
        """
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
