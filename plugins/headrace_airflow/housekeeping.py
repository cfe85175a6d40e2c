"""Keeps `headrace up` small over weeks: removes Airflow's rows and logs of the reaper.

The reaper looks 5,760 times a day, and Airflow removes no row by itself.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

from headrace.processes.identity import die_with_parent
from headrace.processes.working_folder import python_module

logger = logging.getLogger(__name__)

REAPER = "headrace_reaper"
KEPT = timedelta(days=1)
"""How long DAG runs of the reaper and their logs are kept."""
MOST_LOG_BYTES = 2**24
"""Length of a component's log; one more log of this length is kept beside it."""

_FIRST_S, _EVERY_S = 600.0, 3600.0
_TABLES = "dag_run,task_instance,log"


class Housekeeping:
    """Cleans periodically, beside other work."""

    def __init__(self, folder: Path, environment: Mapping[str, str], logs: Path) -> None:
        self._folder, self._environment, self._logs = folder, environment, logs
        self._due_s, self._log = time.monotonic() + _FIRST_S, logs / "housekeeping.log"
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Begin to clean if it is time; log a failure of the last time."""
        if self._process is not None and self._process.poll() is not None:
            if self._process.returncode:
                logger.warning("old rows of the reaper were not removed: see %s", self._log)
            self._process = None
        if self._process is None and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _EVERY_S
            try:
                self._clean(datetime.now(timezone.utc) - KEPT)
            except OSError as error:  # such as a full disk; Airflow has to survive it
                logger.warning("old runs of the reaper are removed later: %s", error)

    def _clean(self, before: datetime) -> None:
        remove_logs(self._folder / "logs" / "tasks" / f"dag_id={REAPER}", before)
        for file in self._logs.glob("*.log"):
            shorten(file)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                clean_command(before),
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )


def clean_command(before: datetime) -> tuple[str, ...]:
    """Return Airflow's command that removes rows of the reaper from before a time."""
    words = f"db clean --yes --skip-archive --tables {_TABLES} --dag-ids {REAPER}"
    until = ("--clean-before-timestamp", before.isoformat())
    return python_module("headrace_airflow.component", *words.split(), *until)


def remove_logs(folder: Path, before: datetime) -> None:
    """Remove the folders of DAG runs that were written before a time."""
    for each in folder.glob("run_id=*"):
        if each.stat().st_mtime < before.timestamp():
            shutil.rmtree(each, ignore_errors=True)


def shorten(log: Path) -> None:
    """Move a long log to another file beside it; processes that append to it continue in it."""
    if log.stat().st_size > MOST_LOG_BYTES:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)
