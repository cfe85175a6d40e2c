"""Children of a step that end together, and the causes of their ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

GRACE_S = 3.0
"""Seconds between the request to end and SIGKILL."""

_KILLED_FOR_MEMORY = "the kernel killed it because the memory ran out"
_MORE_MEMORY = (
    "Give it more memory (in a batch system, that of the job), or let it use less: smaller "
    "batches, fewer ranks per node. "
)

_TAIL_LINES, _TAIL_BYTES = 30, 65_536
_POLL_S, _SUPERVISED_EVERY_S = 0.02, 0.05


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process to start."""

    name: str
    """Name for messages and for `ps -o comm`, as `rank 3`."""
    command: tuple[str, ...]
    """Program and arguments. It must ask to die with its parent: see `headrace.processes`."""
    log: Path
    """File that its standard output and error are appended to."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that differ from those of what it is started or forked from."""
    input: int | None = None
    """File descriptor of its standard input; None for an empty one."""
    output: int | None = None
    """File descriptor of its standard output and error; None for the log."""
    folder: str | None = None
    """Working folder; None for that of what it is started or forked from."""


@dataclass(frozen=True, kw_only=True)
class ChildEnd:
    """How a child ended."""

    name: str
    code: int
    """Exit code; minus the signal number if a signal ended it."""
    at: float
    """When its end was noticed, seconds since the epoch."""
    stopped: bool
    """Whether it ended because the group was stopped."""
    out_of_memory: bool = False
    """Whether the kernel killed it for memory."""
    log: Path = Path(os.devnull)
    log_start: int = 0
    """Bytes in its log before its start."""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself and with an error."""
        return self.code != 0 and not self.stopped

    @property
    def cause(self) -> str:
        """Return the cause of its end, for users."""
        if self.code >= 0:
            return f"exit code {self.code}"
        name = f"signal {signal.Signals(-self.code).name}"
        return f"{name}: {_KILLED_FOR_MEMORY}" if self.out_of_memory else name

    @property
    def advice(self) -> str:
        """Return what to do if the kernel killed it for memory; otherwise empty."""
        return _MORE_MEMORY if self.out_of_memory else ""

    @property
    def last_words(self) -> str:
        """Return the last lines of its own output in its log, which may be large.

        Empty if it was never forked.
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
        """Process id, as of the last call of `poll`; None if not known yet."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def send_signal(self, sig: signal.Signals) -> None:
        """Signal the process, if it runs."""

    def signal_group(self, sig: signal.Signals) -> None:
        """Signal the process and its descendants that did not leave its group."""


class Program(subprocess.Popen[bytes]):
    """A `Process` that is its own program."""

    def signal_group(self, sig: signal.Signals) -> None:
        """Signal the process and its descendants that did not leave its group."""
        signal_group(self.pid, sig)


def start_program(child: Child, base: Mapping[str, str] | None = None) -> Program:
    """Start a child as its own program, as the leader of a session.

    `base` is the environment to which the child's is added, by default this process's. A thread
    starts the child and waits for its end: the kernel ends it with that thread, if it asks to die
    with its parent, and it leaves no zombie.
    """
    child.log.parent.mkdir(parents=True, exist_ok=True)
    started: Future[Program] = Future()
    with child.log.open("ab") as log:
        start = partial(
            Program,
            child.command,
            stdin=subprocess.DEVNULL if child.input is None else child.input,
            stdout=log if child.output is None else child.output,
            stderr=subprocess.STDOUT,
            env={**(os.environ if base is None else base), **child.env},
            cwd=child.folder,
            start_new_session=True,
        )
        threading.Thread(target=_hold, args=(start, started), daemon=True).start()
        return started.result()


def _hold(start: Callable[[], Program], started: Future[Program]) -> None:
    try:
        process = start()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()


class ChildGroup:
    """Starts children, watches them, and ends all if one fails. A context manager.

    Each child leads a process group, so that its own children end with it.

    Args:
        children: Children to start.
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
        """Names of the children that were running when `ends` was called last."""
        return tuple(self._running)

    def ends(self) -> tuple[ChildEnd, ...]:
        """Return the ends so far, in the order in which they were noticed."""
        for child in self._children:
            process = self._running.get(child.name)
            code = None if process is None else process.poll()
            if process is not None and code is not None:
                del self._running[child.name]
                self._ends[child.name] = self._end(child, code)
                process.signal_group(signal.SIGKILL)  # its remaining children
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

    def supervise(self, keep_on: Callable[[], bool]) -> tuple[ChildEnd, ...]:
        """Wait until all ended, one failed, or `keep_on` returns false; return their ends."""
        while not self._have_ended():
            if any(end.failed for end in self._ends.values()) or not keep_on():
                return self.stop()
            time.sleep(_SUPERVISED_EVERY_S)
        return tuple(self._ends.values())

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
        self.wait(self._grace_s)
        for process in self._running.values():
            process.signal_group(signal.SIGKILL)
        self.wait(math.inf)
        return tuple(self._ends.values())

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of all children; return whether they have ended in this time."""
        return wait_until(self._have_ended, timeout_s)

    def _have_ended(self) -> bool:
        self.ends()
        return not self._running


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S) -> bool:
    """Check a condition until it is true, or the time is over; return whether it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def signal_group(pid: int, sig: signal.Signals) -> None:
    """Signal a process group, if it exists."""
    with suppress(ProcessLookupError):
        os.killpg(pid, sig)


def num_memory_kills(
    groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return how many processes of this control group the kernel has killed for memory.

    0 if the kernel does not report it. `groups` is the file with the control groups of the
    process, `mount` the folder in which they are mounted.
    """
    kills = [0]
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        is_old = "memory" in controllers.split(",")
        if is_old or not controllers:
            folder = (mount / "memory" if is_old else mount) / path.lstrip("/")
            file = folder / ("memory.oom_control" if is_old else "memory.events")
            counts = dict(each.split(maxsplit=1) for each in _lines(file) if " " in each)
            kills.append(int(counts.get("oom_kill", 0)))
    return max(kills)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
