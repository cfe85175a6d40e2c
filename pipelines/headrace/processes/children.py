"""Children of a step that stand and fall together, and what is known when one has died."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

GRACE_S = 3.0
"""Seconds that children have to end when they are asked to."""

_KILLED_FOR_MEMORY = "the kernel killed it, as the memory ran out"
_MORE_MEMORY = (
    "Give it more memory (in a batch system, that of the job), or let it take less: smaller "
    "batches, fewer ranks on a node. "
)

_TAIL_LINES, _TAIL_BYTES = 30, 65_536


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process to start."""

    name: str
    """Name for messages and for `ps -o comm`, as in `rank 3`."""
    command: tuple[str, ...]
    """Program and arguments. It must ask to die with its parent: see `headrace.processes`."""
    log: Path
    """Standard output and error are appended here."""
    env: Mapping[str, str] = field(default_factory=dict)
    input: int | None = None
    """File descriptor of its standard input, None for an empty one."""


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """How a child ended."""

    name: str
    code: int
    """Exit code; minus the signal number when a signal ended it."""
    at: float
    """When it was seen to have ended, seconds since the epoch."""
    stopped: bool
    """Whether it ended because the group was stopped."""
    out_of_memory: bool = False
    """Whether the kernel killed it for memory."""
    log: Path = Path(os.devnull)
    log_start: int = 0
    """Bytes that its log held before."""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and not well."""
        return self.code != 0 and not self.stopped

    @property
    def cause(self) -> str:
        """The end in words."""
        if self.code >= 0:
            return f"exit code {self.code}"
        name = f"signal {signal.Signals(-self.code).name}"
        return f"{name}: {_KILLED_FOR_MEMORY}" if self.out_of_memory else name

    @property
    def advice(self) -> str:
        """What to do where the kernel killed it for memory; empty otherwise."""
        return _MORE_MEMORY if self.out_of_memory else ""

    @property
    def last_words(self) -> str:
        """The last lines of its log, of any size, less those of earlier processes.

        Empty of one that was not forked before its server ended, or before it was stopped.
        """
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(self.log_start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


class Process(Protocol):
    """A child that was started."""

    @property
    def pid(self) -> int | None:
        """Its process id, as of the last look; None until there is one."""

    def poll(self) -> int | None:
        """Exit code, None while it runs."""

    def wait(self) -> int:
        """Wait for its end; gives the exit code."""

    def send_signal(self, sig: signal.Signals) -> None:
        """Signal the process, if it runs."""

    def signal_group(self, sig: signal.Signals) -> None:
        """Signal the process and all that it started and that did not leave its group."""


class _Program(subprocess.Popen[bytes]):
    def signal_group(self, sig: signal.Signals) -> None:
        signal_group(self.pid, sig)


def start_program(child: Child) -> Process:
    """Start a child as a program of its own, which leads a process group."""
    child.log.parent.mkdir(parents=True, exist_ok=True)
    with child.log.open("ab") as log:
        return _Program(
            child.command,
            stdin=subprocess.DEVNULL if child.input is None else child.input,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **child.env},
            start_new_session=True,
        )


class ChildGroup:
    """Starts children, watches them, and ends all when one fails. A context manager.

    Each child leads a process group, so that what it started ends with it. The thread that starts
    them must outlive them, since the kernel ties their lives to that thread.

    Args:
        children: What to start.
        grace_s: Seconds between SIGTERM and SIGKILL.
        start: Starts one child.
    """

    def __init__(
        self,
        children: Sequence[Child],
        grace_s: float = GRACE_S,
        start: Callable[[Child], Process] = start_program,
    ) -> None:
        self._children = children
        self._grace_s = grace_s
        self._start = start
        self._log_starts = {
            child.name: child.log.stat().st_size if child.log.exists() else 0 for child in children
        }
        self._memory_kills = num_memory_kills()
        self._running: dict[str, Process] = {}
        self._ends: dict[str, ChildEnd] = {}
        self._stopping = False

    def __enter__(self) -> ChildGroup:
        try:
            for child in self._children:
                self._running[child.name] = self._start(child)
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
        for child in self._children:
            process = self._running.get(child.name)
            code = None if process is None else process.poll()
            if process is not None and code is not None:
                del self._running[child.name]
                self._ends[child.name] = self._end(child, code)
                process.signal_group(signal.SIGKILL)  # what it left behind
        return tuple(self._ends.values())

    def _end(self, child: Child, code: int) -> ChildEnd:
        was_killed = code == -signal.SIGKILL
        return ChildEnd(
            name=child.name,
            code=code,
            at=time.time(),
            stopped=self._stopping,
            out_of_memory=was_killed and num_memory_kills() > self._memory_kills,
            log=child.log,
            log_start=self._log_starts[child.name],
        )

    def supervise(
        self, keep_on: Callable[[], bool], interval_s: float = 0.05
    ) -> tuple[ChildEnd, ...]:
        """Wait until all children ended, one failed, or `keep_on` gives false; gives their ends."""
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
            process.signal_group(signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)
            self.ends()
        for process in self._running.values():
            process.signal_group(signal.SIGKILL)
        for process in list(self._running.values()):
            process.wait()
        return self.ends()


def signal_group(pid: int, sig: signal.Signals) -> None:
    """Signal a process group, if it is there."""
    with suppress(ProcessLookupError):
        os.killpg(pid, sig)


def num_memory_kills(
    groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int:
    """Processes that the kernel killed for memory in this process's control group, so far.

    0 where the kernel does not tell. `groups` is the file with the control groups of the process,
    `mount` where they are mounted.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return 0
    files = [_events_file(line, mount) for line in lines]
    return max((_oom_kills(file) for file in files if file is not None), default=0)


def _events_file(line: str, mount: Path) -> Path | None:
    _, controllers, path = line.split(":", 2)
    if not controllers:
        return mount / path.lstrip("/") / "memory.events"
    if "memory" in controllers.split(","):
        return mount / "memory" / path.lstrip("/") / "memory.oom_control"
    return None


def _oom_kills(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(counts.get("oom_kill", 0))
