"""The processes of a run on this machine, and what each of them is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

HOME = "HEADRACE_HOME"
"""Environment variable that all processes of a run inherit; each trial has a home of its own."""

_MEMORY = "/dev/shm"
_YOUNG_S = 2.0
"""A process as old as that has replaced what it was forked from."""

_PAUSE_S = 0.05
_TRACKERS_S = 10.0

_BY_NAME = (
    ("rank ", "rank"),
    ("predictor", "predictor"),
    ("driver ", "driver"),
    ("worker ", "worker"),
    ("guard", "guard"),
)
_BY_COMMAND = (
    ("headrace.cli.app", "command"),
    ("headrace.clusters.host", "host"),
    ("headrace.processes.forking", "server"),
    ("multiprocessing.resource_tracker", "tracker"),
    ("dask worker", "worker"),
    ("multiprocessing.spawn", "worker"),
)


def role_of(name: str, command: str) -> str:
    """What a process of a run is.

    Args:
        name: Name that the kernel shows.
        command: Its command line.

    Returns:
        A role of `trials.TARGETS`, or `other`.
    """
    by_name = (role for start, role in _BY_NAME if name.startswith(start))
    by_command = (role for part, role in _BY_COMMAND if part in command)
    return next(by_name, None) or next(by_command, "other")


class Processes:
    """Looks again and again for the processes that belong to a home.

    Args:
        home: Headrace's home of one run.
    """

    def __init__(self, home: Path) -> None:
        self._home = str(home)
        self._others: set[psutil.Process] = set()

    def living(self) -> dict[psutil.Process, str]:
        """Those that live now, with their roles, in the order of their ids."""
        found = {}
        for pid in psutil.pids():
            try:
                process = psutil.Process(pid)
                if process in self._others:
                    continue
                if self._is_mine(process):
                    found[process] = role_of(process.name(), " ".join(process.cmdline()))
                elif time.time() - process.create_time() > _YOUNG_S:
                    self._others.add(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def kill(self) -> None:
        """End all of them, those started meanwhile too; trackers, which tidy up, last."""
        until = time.monotonic() + _TRACKERS_S
        while found := self.living():
            others = [process for process, role in found.items() if role != "tracker"]
            for process in others if time.monotonic() < until else found:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(_PAUSE_S)

    def _is_mine(self, process: psutil.Process) -> bool:
        is_over = process.status() == psutil.STATUS_ZOMBIE
        return not is_over and process.environ().get(HOME) == self._home


def shared_memory(found: Iterable[psutil.Process]) -> frozenset[Path]:
    """What of the machine's named shared memory these processes have mapped."""
    mapped = {inode for process in found for inode in _mapped(process)}
    return frozenset(Path(each) for each in os.scandir(_MEMORY) if each.inode() in mapped)


def _mapped(process: psutil.Process) -> Iterator[int]:
    """Inodes; the name that the kernel shows of a semaphore is one that it had only at first."""
    try:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    except OSError:  # gone meanwhile
        return
    yield from (int(line.split()[4]) for line in lines if f" {_MEMORY}/" in line)


def describe(found: dict[psutil.Process, str]) -> tuple[str, ...]:
    """One line a process: role, id, state, command."""
    return tuple(_line(process, role) for process, role in found.items())


def _line(process: psutil.Process, role: str) -> str:
    try:
        command = " ".join(process.cmdline())
        return f"{role} {process.pid} ({process.status()}): {command}"
    except psutil.NoSuchProcess:
        return f"{role} {process.pid}: gone meanwhile"
