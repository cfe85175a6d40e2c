"""The host's side of the mailbox: starts drivers of steps, records their ends, exports metrics."""

from __future__ import annotations

import itertools
import json
import logging
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from headrace.clusters.local import DRIVERS, IMPORTED
from headrace.files.atomic import is_there, read_bytes, write_json
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.files.machine import storage_error
from headrace.processes.children import Child, Process, wait_until
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import end_processes
from headrace.processes.working_folder import python_module

logger = logging.getLogger(__name__)

_CANCEL_GRACE_S = 15.0
_KILLED_S = 2.0
_SITE_COUNTS = ("running", "assigned", "ended")


@dataclass
class _Driver:
    folder: StepFolder
    process: Process
    cancelled_at: float | None = None
    has_ended: bool = False
    why: str = ""


class Drivers:
    """The step drivers of one lease, all with the same environment.

    Not thread-safe; `check` is called a few times a second. A driver that ignores a cancellation
    for `cancel_grace_s` is killed.
    """

    def __init__(
        self,
        lease: LeaseFolder,
        environment: Mapping[str, str],
        cancel_grace_s: float = _CANCEL_GRACE_S,
    ) -> None:
        self._lease = lease
        self._servers = ForkServers(DRIVERS, frozenset(), environment, IMPORTED)
        self._cancel_grace_s = cancel_grace_s
        self._running: list[_Driver] = []
        self._next = 1

    @property
    def num_running(self) -> int:
        """Number of running drivers."""
        return len(self._running)

    def warm_up(self) -> None:
        """Start the imports of drivers, before the first step."""
        self._servers.warm_up()

    def check(self) -> None:
        """Record drivers that ended, kill those that ignore a cancellation, start new ones."""
        self._running = [driver for driver in self._running if not _collect(driver)]
        for driver in self._running:
            self._enforce_cancel(driver)
        while is_there((folder := self._lease.step(self._next)).path):
            self._claim(folder)
            self._next += 1

    def end_all(self, why: str, grace_s: float = 3.0) -> None:
        """End all drivers with everything below them, and record why the lease ends."""
        for driver in self._running:
            driver.why = why if driver.process.poll() is None else ""
        trees = [process for driver in self._running for process in _descendants(driver)]
        for sig, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILLED_S)):
            for driver in self._running:
                driver.process.send_signal(sig)
            wait_until(lambda: None not in [each.process.poll() for each in self._running], wait_s)
        for driver in self._running:
            _collect(driver)
        self._running = []
        end_processes(trees, grace_s=0.5)

    def _claim(self, folder: StepFolder) -> None:
        if is_there(folder.exit) or is_there(folder.result):
            return
        if is_there(folder.status):  # an earlier host started it and was killed, with the driver
            _write_exit(folder, -signal.SIGKILL)
            return
        child = Child(
            name=f"driver {folder.number}",
            command=python_module("headrace.steps.run", str(folder.path)),
            log=folder.logs / "driver.log",
        )
        logger.info("Step %d: its driver starts", folder.number)
        self._running.append(_Driver(folder, self._servers.start(child)))

    def _enforce_cancel(self, driver: _Driver) -> None:
        if not is_there(driver.folder.cancel):
            return
        driver.cancelled_at = driver.cancelled_at or time.monotonic()
        if time.monotonic() - driver.cancelled_at < self._cancel_grace_s:
            return
        logger.warning("Step %d ignores its cancellation; killing it", driver.folder.number)
        for process in _descendants(driver):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # ended; or of another user
                process.kill()
        driver.process.send_signal(signal.SIGKILL)


def _collect(driver: _Driver) -> bool:
    """Record the exit of a driver that has ended, and end the rest of its process group."""
    code = driver.process.poll()
    if code is None:
        return False
    if not driver.has_ended:
        driver.has_ended = True
        driver.process.signal_group(signal.SIGKILL)
        logger.info("Step %d: driver ended with code %d", driver.folder.number, code)
    try:
        _write_exit(driver.folder, code, driver.why)
    except OSError as error:
        if storage_error(error, driver.folder.path) is None:
            raise
        return False  # tried again later
    return True


def _write_exit(folder: StepFolder, code: int, why: str = "") -> None:
    # the record is DriverExit of headrace.steps, a layer above
    write_json(folder.exit, {"code": int(code), "at": time.time(), "why": why})


def _descendants(driver: _Driver) -> list[psutil.Process]:
    if driver.process.pid is None:
        return []
    try:
        return psutil.Process(driver.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def publish_steps(folder: LeaseFolder) -> None:
    """Export the steps of a lease, if `prometheus-client` is installed (`headrace[prometheus]`)."""
    if find_spec("prometheus_client") is None:
        return
    from prometheus_client import REGISTRY

    REGISTRY.register(StepFigures(folder))


class StepFigures:
    """A collector of `prometheus_client`: status of a lease's running steps."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._folder = folder

    def describe(self) -> Iterable[Any]:
        """Return nothing: the metrics are not known in advance."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield gauges, labelled with run and step; each step has its own units, see its status.

        Those of a suite over several sites also have the site.
        """
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, meaning: str, *labels: str) -> Any:
            every = ("run", "step", *labels)
            return GaugeMetricFamily(f"headrace_step_{name}", meaning, labels=every)

        done = gauge("done", "Units of work that are done", "unit")
        total = gauge("total", "Units of work in all", "unit")
        left = gauge("eta_seconds", "Time until the end of the step")
        figure = gauge("metric", "Newest value of a metric", "metric")
        trials = gauge("site_trials", "Trials of a suite at one of its sites", "site", "state")
        usd = gauge("site_usd", "US dollars that a site of a suite has cost", "site")
        site_left = gauge("site_eta_seconds", "Time until the last trial at a site ends", "site")
        for spec, status in self._running():
            of, progress = (spec["run_id"], spec["name"]), status["progress"]
            done.add_metric((*of, progress["unit"]), progress["done"])
            if progress["total"] is not None:
                total.add_metric((*of, progress["unit"]), progress["total"])
            if status["eta_s"] is not None:
                left.add_metric(of, status["eta_s"])
            for name, value in status["metrics"].items():
                figure.add_metric((*of, name), value)
            for site in _sites(spec):
                for state in _SITE_COUNTS:
                    trials.add_metric((*of, site["site"], state), site[state])
                for family, key in ((usd, "usd"), (site_left, "eta_s")):
                    if site[key] is not None:
                        family.add_metric((*of, site["site"]), site[key])
        yield from (done, total, left, figure, trials, usd, site_left)

    def _running(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield specs and statuses, as `headrace.steps` writes them."""
        for number in itertools.count(1):
            step = self._folder.step(number)
            if not is_there(step.path):
                return
            spec, status = read_bytes(step.spec), read_bytes(step.status)
            if spec and status and not is_there(step.result) and not is_there(step.exit):
                yield json.loads(spec), json.loads(status)


def _sites(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sites of a suite over several, as `SiteSummary` of headrace.suites."""
    content = read_bytes(RunFolder(Path(spec["run_folder"])).summary)
    return json.loads(content)["sites"] if spec["kind"] == "sites" and content else []
