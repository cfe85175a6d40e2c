"""Finds the processes that a test has started, directly or not, and that still live."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

MARK = "HEADRACE_TEST_ID"
"""Environment variable that every process started by a marked test inherits."""

_PLACES = ("HEADRACE_", "AIRFLOW_HOME")


def started_by(test_id: str, folder: Path) -> list[psutil.Process]:
    """Living processes of a test, without this one and its ancestors.

    A process belongs to the test when it carries the test's mark, or when one of its
    `HEADRACE_…` or `AIRFLOW_HOME` variables or one of its arguments lies in the test's folder.

    Args:
        test_id: Value of `MARK` during the test.
        folder: Temporary folder of the test.
    """
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [
        process
        for process in psutil.process_iter()
        if process.pid not in own and _belongs(process, test_id, str(folder))
    ]


def describe(processes: list[psutil.Process]) -> str:
    """One line a process: pid, parent, state, command."""
    return "\n".join(_line(process) for process in processes)


def _belongs(process: psutil.Process, test_id: str, folder: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        environment = process.environ()
        arguments = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    if environment.get(MARK) == test_id:
        return True
    named = [value for key, value in environment.items() if key.startswith(_PLACES)]
    return any(value == folder or value.startswith(f"{folder}/") for value in [*named, *arguments])


def _line(process: psutil.Process) -> str:
    try:
        with process.oneshot():
            command = " ".join(process.cmdline())[:200]
            return f"  {process.pid} (parent {process.ppid()}, {process.status()}): {command}"
    except psutil.NoSuchProcess:
        return f"  {process.pid}: gone meanwhile"


_WAIT = "import sys\nif not sys.stdin.read():\n"


@contextmanager
def last_will(statement: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a statement of Python when this process dies inside the context, whatever kills it.

    Args:
        statement: One line.
        environment: Environment variables in which it is run.
    """
    executor = subprocess.Popen(
        [sys.executable, "-c", f"{_WAIT}    {statement}"],
        stdin=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        yield
    finally:
        executor.communicate(b"alive")


@contextmanager
def unmarked() -> Iterator[None]:
    """What is started here outlives the test."""
    mark = os.environ.pop(MARK, None)
    try:
        yield
    finally:
        if mark is not None:
            os.environ[MARK] = mark
