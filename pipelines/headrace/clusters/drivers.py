"""The host's side of the mailbox: claims steps, starts their drivers, records how they ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from headrace.files.atomic import is_there, write_json
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.files.machine import is_full
from headrace.processes import end_processes

logger = logging.getLogger(__name__)

_CANCEL_GRACE_S = 15.0


@dataclass
class _Driver:
    folder: StepFolder
    process: subprocess.Popen[bytes]
    cancelled_at: float | None = None
    has_ended: bool = False
    why: str = ""


class Drivers:
    """The step drivers of one lease. Not thread-safe; `check` is called a few times a second."""

    def __init__(
        self,
        lease: LeaseFolder,
        environment: Mapping[str, str],
        cancel_grace_s: float = _CANCEL_GRACE_S,
    ) -> None:
        self._lease = lease
        self._environment = dict(environment)
        self._cancel_grace_s = cancel_grace_s
        self._running: list[_Driver] = []
        self._next = 1

    @property
    def num_running(self) -> int:
        """Drivers that run now."""
        return len(self._running)

    def check(self) -> None:
        """Record drivers that ended, kill those that ignore a cancel, start new ones."""
        self._running = [driver for driver in self._running if not _collect(driver)]
        for driver in self._running:
            self._enforce_cancel(driver)
        while is_there((folder := self._lease.step(self._next)).path):
            self._claim(folder)
            self._next += 1

    def end_all(self, why: str, grace_s: float = 3.0) -> None:
        """End all drivers with everything below them, and record why the lease ends."""
        trees = [process for driver in self._running for process in _descendants(driver)]
        for driver in self._running:
            driver.why = why if driver.process.poll() is None else ""
            driver.process.terminate()
        deadline = time.monotonic() + grace_s
        for driver in self._running:
            with suppress(subprocess.TimeoutExpired):
                driver.process.wait(max(deadline - time.monotonic(), 0.0))
            driver.process.kill()
            driver.process.wait()
            _collect(driver)
        self._running = []
        end_processes(trees, grace_s=0.5)

    def _claim(self, folder: StepFolder) -> None:
        if is_there(folder.exit) or is_there(folder.result):
            return
        if is_there(folder.status):  # an earlier host started it and was killed, with the driver
            _write_exit(folder, -signal.SIGKILL)
            return
        folder.logs.mkdir(exist_ok=True)
        with (folder.logs / "driver.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.steps.run", str(folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        logger.info("Step %d: driver %d started", folder.number, process.pid)
        self._running.append(_Driver(folder, process))

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
        driver.process.kill()


def _collect(driver: _Driver) -> bool:
    """Record the exit of a driver that has ended, and end what it left in its process group."""
    code = driver.process.poll()
    if code is None:
        return False
    if not driver.has_ended:
        driver.has_ended = True
        with suppress(ProcessLookupError):
            os.killpg(driver.process.pid, signal.SIGKILL)
        logger.info("Step %d: driver ended with code %d", driver.folder.number, code)
    try:
        _write_exit(driver.folder, code, driver.why)
    except OSError as error:
        if not is_full(error):
            raise
        return False  # until there is room
    return True


def _write_exit(folder: StepFolder, code: int, why: str = "") -> None:
    # the record is DriverExit of headrace.steps, a layer above
    write_json(folder.exit, {"code": int(code), "at": time.time(), "why": why})


def _descendants(driver: _Driver) -> list[psutil.Process]:
    try:
        return psutil.Process(driver.process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
