"""One component of Airflow as a child process that is started again when it ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from headrace.cli.airflow_server import marked
from headrace.processes import die_with_parent, end_processes

logger = logging.getLogger(__name__)

GENERATION_MARK = "HEADRACE_AIRFLOW_COMPONENT"
"""Environment variable `<name>/<generation>` of a component and all that it starts."""

ORPHAN_GRACE_S = 20.0
"""A task of a scheduler that was killed may end by itself within this time."""

_LONG_LIFE_S = 60.0
_LONGEST_WAIT_S = 30.0


def wait_before_restart_s(num_short_lives: int) -> float:
    """Seconds to wait before the next start, after so many lives in a row that ended soon."""
    return 0.0 if num_short_lives <= 1 else min(_LONGEST_WAIT_S, 2.0 ** (num_short_lives - 2))


class Component:
    """A component of Airflow, such as the scheduler, kept alive.

    Args:
        command: Words after `airflow`; the first one is the component's name.
        environment: The whole environment.
        log_file: Its output goes here.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log_file: Path) -> None:
        self.name = command[0]
        self.num_short_lives = 0
        self._command = [sys.executable, "-m", "airflow", *command]
        self._environment = environment
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._generation = 0
        self._started_at = 0.0
        self._start_at = 0.0
        self._orphans: dict[str, float] = {}

    def listens(self, port: int) -> bool:
        """Whether the component listens on a port."""
        return self._process is not None and listens(self._process.pid, port)

    def look(self) -> None:
        """Start the component when it is due; end what an earlier generation has left."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._note_end(self._process.returncode, now)
        if self._process is None and now >= self._start_at:
            self._start(now)
        for mark in [mark for mark, due in self._orphans.items() if now >= due]:
            del self._orphans[mark]
            end_processes(_with_mark(mark))

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False when the component still runs after the time."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _start(self, now: float) -> None:
        self._generation += 1
        environment = {**self._environment, GENERATION_MARK: self._mark}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=die_with_parent,
            )
        self._started_at = now
        logger.info("%s started, process %d", self.name, self._process.pid)

    def _note_end(self, code: int, now: float) -> None:
        lived_long = now - self._started_at >= _LONG_LIFE_S
        self.num_short_lives = 1 if lived_long else self.num_short_lives + 1
        wait_s = wait_before_restart_s(self.num_short_lives)
        logger.warning("%s ended with %d; started again in %g s", self.name, code, wait_s)
        self._orphans[self._mark] = now + ORPHAN_GRACE_S
        self._start_at = now + wait_s
        self._process = None

    @property
    def _mark(self) -> str:
        home = self._environment["AIRFLOW_HOME"]
        return f"{self.name}/{self._generation} of {home}"


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a port."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        connections = [one for member in family for one in member.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def _with_mark(mark: str) -> list[psutil.Process]:
    return [
        process for process in psutil.process_iter() if marked(process, GENERATION_MARK) == mark
    ]
