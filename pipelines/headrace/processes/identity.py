"""Processes of this machine: identity, dying with a parent, outliving one, ending many."""

from __future__ import annotations

import atexit
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import BaseModel, ConfigDict

from headrace.errors import LeaseLostError

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")
_PARENT = "HEADRACE_PARENT_PID"
"""Variable by which a process tells those that it starts who they belong to."""

CPUS, MEMORY = "HEADRACE_CPUS", "HEADRACE_MEMORY_BYTES"
"""Variables that give a child a part of its node: CPUs that it may use, as in `0,1`, and the most
memory that it may ask for, 0 for no limit."""

_KILLED_SOONER = 500


class ProcessIdentity(BaseModel):
    """A process named so that a recycled pid is not taken for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    pid: int
    started_s: float
    """When it started, seconds after its host did: that no setting of the host's clock changes."""

    @classmethod
    def of(cls, pid: int | None = None) -> ProcessIdentity:
        """Identity of a living process of this machine (default: this one)."""
        pid = os.getpid() if pid is None else pid
        return cls(host=socket.gethostname(), pid=pid, started_s=_look_at(pid).started_s)

    @property
    def is_here(self) -> bool:
        """Whether the process belongs to this machine, so that it can be looked at."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether this very process (not a later one with its pid) still runs here."""
        try:
            found = _look_at(self.pid)
        except ProcessLookupError:
            return False
        return found.started_s == self.started_s and not found.has_ended


class _ProcessLook(NamedTuple):
    started_s: float
    has_ended: bool


def _look_at(pid: int) -> _ProcessLook:
    """A process as the kernel shows it (`proc_pid_stat(5)`).

    The time of its start that psutil gives is one of day, which moves when the clock is set.

    Raises:
        ProcessLookupError: There is none.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"There is no process {pid}") from error
    state, *fields = text.rpartition(")")[2].split()  # the program's name may hold anything
    return _ProcessLook(int(fields[18]) / os.sysconf("SC_CLK_TCK"), state in "ZX")


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when the thread that started it ends (Linux).

    Raises:
        LeaseLostError: The parent was gone before the request was in place.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    # process 1 takes over orphans; in a container it may be the parent itself, which says so
    is_orphan = parent == 1 and os.environ.get(_PARENT) != "1"
    if os.getppid() != parent or is_orphan:
        raise LeaseLostError("The parent process ended before its child had started")
    tell_children()


def begin_child() -> None:
    """Set up a child's program: log to standard error, and die with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # only user code raises KeyboardInterrupt then
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    die_with_parent()
    take_part()


def take_part() -> None:
    """Keep to the part of the node that `CPUS` and `MEMORY` give this process, if they do.

    It cannot be widened by what the process starts. When the node's memory runs out, the kernel
    kills such a process sooner than others.
    """
    cpus, memory = os.environ.get(CPUS), os.environ.get(MEMORY)
    if cpus:
        os.sched_setaffinity(0, [int(each) for each in cpus.split(",")])
    if memory:
        Path("/proc/self/oom_score_adj").write_text(str(_KILLED_SOONER))
    if memory and int(memory):
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))


def tell_children() -> None:
    """Name this process, in its environment, as the parent of those that it starts from now on."""
    os.environ[_PARENT] = str(os.getpid())


def set_name(name: str) -> None:
    """Name this process, for `ps -o comm`; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def spawn_detached(
    command: Sequence[str], log_file: Path, env: Mapping[str, str] | None = None
) -> ProcessIdentity:
    """Start a process that outlives the caller: own session, no terminal, output to a file.

    Standard output and error are appended to `log_file`; `env` is the whole environment, by default
    the caller's.
    """
    with log_file.open("ab") as log:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(env) if env is not None else None,
            close_fds=True,
        )
    identity = ProcessIdentity.of(child.pid)
    # the caller never waits for it; somebody has to, or it stays as a zombie when it ends first
    threading.Thread(target=child.wait, name=f"wait-{child.pid}", daemon=True).start()
    return identity


def holds_gpu(files: Iterable[str]) -> bool:
    """Whether a process with these open files has begun to use a GPU."""
    return any(file.startswith(_GPUS) for file in files)


def open_files() -> list[str]:
    """What this process has open, as the kernel names it."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(str(entry.readlink()))
    return found


def end_quickly() -> None:
    """Have this process leave out Python's last collection of garbage, at its end.

    That takes seconds after an import of Airflow's servers. Threads are waited for and functions of
    `atexit` called as always, but what only cycles hold is not freed, as an open file of a module:
    nothing for processes that run a user's code.
    """
    atexit.register(gc.freeze)


def end_processes(processes: Sequence[psutil.Process], grace_s: float = 5.0) -> None:
    """End the given processes: SIGTERM, then SIGKILL to those left after a grace time.

    One that belongs to somebody else, as a program that changes its user, is left with a warning.
    """
    for process in processes:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace_s)


def _signal(process: psutil.Process, sig: signal.Signals) -> None:
    try:
        process.send_signal(sig)
    except psutil.NoSuchProcess:
        return
    except psutil.AccessDenied:
        logger.warning("Process %d may not be ended by this user", process.pid)
