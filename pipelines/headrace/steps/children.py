"""Children of a step that stand and fall together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process to start."""

    name: str
    """Name for messages, as in `rank 3`."""
    command: tuple[str, ...]
    """Program and arguments. It must ask to die with its parent: see `headrace.steps.child`."""
    log: Path
    """Standard output and error are appended here."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables on top of the caller's."""


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """How a child ended."""

    name: str
    """Name of the child."""
    code: int
    """Exit code; minus the signal number when a signal ended it."""
    at: float
    """When it was seen to have ended, seconds since the epoch."""
    stopped: bool
    """Whether it ended because the group was stopped."""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and not well."""
        return self.code != 0 and not self.stopped

    @property
    def cause(self) -> str:
        """The end in words."""
        if self.code >= 0:
            return f"exit code {self.code}"
        return f"signal {signal.Signals(-self.code).name}"


class ChildGroup:
    """Starts children, watches them, and ends all when one fails. A context manager.

    Each child leads a process group, so that what it started ends with it. The thread that starts
    them must outlive them, since the kernel ties their lives to that thread.

    Args:
        children: What to start.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, children: Sequence[Child], grace_s: float = 5.0) -> None:
        self._children = children
        self._grace_s = grace_s
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ends: dict[str, ChildEnd] = {}
        self._stopping = False

    def __enter__(self) -> ChildGroup:
        try:
            for child in self._children:
                self._running[child.name] = _start(child)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the children that have not ended, as of the last look."""
        return tuple(self._running)

    def ends(self) -> tuple[ChildEnd, ...]:
        """Ends so far, in the order in which they were seen."""
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[name]
                self._ends[name] = ChildEnd(
                    name=name, code=code, at=time.time(), stopped=self._stopping
                )
                _signal_group(process.pid, signal.SIGKILL)  # what it left behind
        return tuple(self._ends.values())

    def supervise(
        self, keep_on: Callable[[], bool], interval_s: float = 0.1
    ) -> tuple[ChildEnd, ...]:
        """Wait until all children ended, one failed, or they are to be stopped.

        Args:
            keep_on: Called at each look; false stops all children.
            interval_s: Time between two looks.

        Returns:
            How each child ended, in order of their ends.
        """
        while True:
            ends = self.ends()
            if not self._running:
                return ends
            if any(end.failed for end in ends) or not keep_on():
                return self.stop()
            time.sleep(interval_s)

    def signal(self, name: str, sig: signal.Signals) -> None:
        """Send a signal to one child, if it still runs."""
        process = self._running.get(name)
        if process is not None:
            process.send_signal(sig)

    def stop(self) -> tuple[ChildEnd, ...]:
        """End all children: SIGTERM, then SIGKILL after the grace time."""
        self.ends()
        self._stopping = True
        for process in self._running.values():
            _signal_group(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)
            self.ends()
        for process in self._running.values():
            _signal_group(process.pid, signal.SIGKILL)
        for process in list(self._running.values()):
            process.wait()
        return self.ends()


def _start(child: Child) -> subprocess.Popen[bytes]:
    child.log.parent.mkdir(parents=True, exist_ok=True)
    with child.log.open("ab") as log:
        return subprocess.Popen(
            child.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **child.env},
            start_new_session=True,
        )


def _signal_group(pid: int, sig: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, sig)
