"""The host's side of the mailbox: starts drivers of steps, and records how they ended."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from headrace.clusters.local import DRIVERS, IMPORTED
from headrace.files.atomic import is_there, write_json
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.files.machine import storage_error
from headrace.processes.children import Child, Process
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import end_processes
from headrace.processes.working_folder import python_module

logger = logging.getLogger(__name__)

_CANCEL_GRACE_S = 15.0
_KILLED_S = 2.0
_POLL_S = 0.02


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
        for driver in self._running:
            driver.process.send_signal(signal.SIGTERM)
        _await([driver.process for driver in self._running], grace_s)
        for driver in self._running:
            driver.process.send_signal(signal.SIGKILL)
        _await([driver.process for driver in self._running], _KILLED_S)
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
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.process.send_signal(signal.SIGKILL)


def _await(processes: Sequence[Process], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(each.poll() is None for each in processes):
        time.sleep(_POLL_S)


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
