"""Daemons that belong to one folder: started, recorded by pid and start time, ended again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OWNER = "HEADRACE_SLURM_DEV"
"""Environment variable of all daemons: the folder they belong to; their children inherit it."""

_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


class DevError(Exception):
    """The small Slurm cannot be brought up; the text says why."""


@dataclass(frozen=True)
class Daemon:
    """A process named so that a recycled pid is not taken for it."""

    name: str
    pid: int
    started: str
    """Start time in clock ticks since boot, from /proc."""

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return _start_of(self.pid) == self.started


class Daemons:
    """The daemons of a folder, recorded in its `daemons.json`.

    Args:
        folder: Where they belong; logs are written there.
        before: Called in each new process before its program starts.
    """

    def __init__(self, folder: Path, before: Callable[[], None] | None = None) -> None:
        self._folder = folder.absolute()
        self._children: list[subprocess.Popen[bytes]] = []
        self._before = before
        self._record = self._folder / "daemons.json"

    @property
    def folder(self) -> Path:
        """Where they belong."""
        return self._folder

    @property
    def all(self) -> tuple[Daemon, ...]:
        """Those that were started and not ended by `stop`, in the order of their start."""
        if not self._record.exists():
            return ()
        return tuple(Daemon(**each) for each in json.loads(self._record.read_text()))

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Daemon:
        """Start a daemon in a session of its own; its output goes to `NAME.log`."""
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                list(command),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env, OWNER: str(self._folder)},
                start_new_session=True,
                preexec_fn=self._before,
            )
        self._children.append(process)
        daemon = Daemon(name, process.pid, _start_of(process.pid))
        self._write((*(each for each in self.all if each.name != name), daemon))
        return daemon

    def wait(self, daemon: Daemon, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a daemon does its work.

        Raises:
            DevError: It ended, or took too long; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not daemon.is_alive or time.monotonic() > deadline:
                log = self._folder / f"{daemon.name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
                how = "took too long" if daemon.is_alive else "ended"
                raise DevError(f"{daemon.name} {how}; the end of {log}:\n{tail}")
            time.sleep(_POLL_S)

    def kill(self, name: str) -> None:
        """End a daemon as a crash does."""
        for child in self._children:
            if child.pid in {each.pid for each in self.all if each.name == name}:
                child.kill()
                child.wait()

    def stop(self) -> int:
        """End all daemons, the last first, and whatever they left behind.

        Returns:
            How many processes were ended.
        """
        found = [daemon for daemon in reversed(self.all) if daemon.is_alive]
        for daemon in found:
            _end([daemon])
        left = [each for each in _offspring(self._folder) if each.is_alive]
        _end(left)
        for child in self._children:
            child.wait(timeout=_STOP_TIMEOUT_S)
        self._write(())
        return len(found) + len(left)

    def _write(self, daemons: Sequence[Daemon]) -> None:
        new = self._record.with_suffix(".new")
        new.write_text(json.dumps([asdict(each) for each in daemons]))
        new.replace(self._record)


def _end(daemons: Sequence[Daemon]) -> None:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        for daemon in daemons:
            if daemon.is_alive:
                os.kill(daemon.pid, sig)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(each.is_alive for each in daemons) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _offspring(folder: Path) -> list[Daemon]:
    """Processes that inherited the mark of this folder's daemons: job steps that lost theirs."""
    mark = f"{OWNER}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    pid = int(entry.name)
                    found.append(Daemon("left behind", pid, _start_of(pid)))
            except OSError:  # it has ended meanwhile
                continue
    return found


def _start_of(pid: int) -> str:
    """Start time of a living process; empty when there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
