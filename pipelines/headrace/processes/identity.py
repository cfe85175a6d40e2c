"""Processes of this machine: identity, death with a parent, orderly end."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from headrace.errors import LeaseLostError

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")
_PARENT = "HEADRACE_PARENT_PID"
"""Variable that names the parent of the processes that it starts."""

CPUS, MEMORY = "HEADRACE_CPUS", "HEADRACE_MEMORY_BYTES"
"""Variables that limit a child to a part of its node: CPUs that it may use, as `0,1`, and the most
memory that it may allocate, 0 for no limit."""

_KILLED_SOONER = 500


class ProcessIdentity(BaseModel):
    """Identity of a process that a later process with the same pid does not share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    pid: int
    started_s: float
    """Start of the process, seconds after that of its host: independent of the host's clock."""

    @classmethod
    def of(cls, pid: int | None = None) -> ProcessIdentity:
        """Return the identity of a living process of this machine (default: this one)."""
        pid = os.getpid() if pid is None else pid
        return cls(host=socket.gethostname(), pid=pid, started_s=_process_state(pid)[0])

    @property
    def is_here(self) -> bool:
        """Whether the process belongs to this machine, so that its state can be read."""
        return self.host == socket.gethostname()

    @property
    def is_alive(self) -> bool:
        """Whether exactly this process (not a later one with its pid) still runs here."""
        try:
            started_s, has_ended = _process_state(self.pid)
        except ProcessLookupError:
            return False
        return started_s == self.started_s and not has_ended


def _process_state(pid: int) -> tuple[float, bool]:
    """Return when a process started, and whether it has ended (`proc_pid_stat(5)`).

    psutil's time of day moves when the clock is set. Raises ProcessLookupError.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except FileNotFoundError as error:
        raise ProcessLookupError(f"There is no process {pid}") from error
    state, *fields = text.rpartition(")")[2].split()  # the program's name may hold spaces
    return int(fields[18]) / os.sysconf("SC_CLK_TCK"), state in "ZX"


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> None:
    """End with the thread that started this process (Linux); raise LeaseLostError if it is gone."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    # process 1 adopts orphans; in a container it may be the real parent, and says so
    is_orphan = parent == 1 and os.environ.get(_PARENT) != "1"
    if os.getppid() != parent or is_orphan:
        raise LeaseLostError("The parent process ended before its child had started")
    tell_children()


def begin_child() -> None:
    """Set up a child's program: die with the parent; logs and traces go to standard error."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # only user code raises KeyboardInterrupt then
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    die_with_parent()
    take_part()


def take_part() -> None:
    """Limit this process to the part of the node that `CPUS` and `MEMORY` give it, if set.

    Its own children cannot exceed it. When the node's memory runs out, the kernel kills this
    process before others.
    """
    cpus, memory = os.environ.get(CPUS), os.environ.get(MEMORY)
    if cpus:
        os.sched_setaffinity(0, [int(each) for each in cpus.split(",")])
    if memory:
        Path("/proc/self/oom_score_adj").write_text(str(_KILLED_SOONER))
    if memory and int(memory):
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))


def tell_children() -> None:
    """Name this process, in its environment, as the parent of processes that it starts later."""
    os.environ[_PARENT] = str(os.getpid())


def set_name(name: str) -> None:
    """Set this process's name for `ps -o comm`; the kernel keeps 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def holds_gpu(files: Path = Path("/proc/self/fd")) -> bool:
    """Whether this process has begun to use a GPU; `files` is the folder of its open files."""
    for entry in files.iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            if str(entry.readlink()).startswith(_GPUS):
                return True
    return False


def take_input() -> int:
    """Return a duplicate of standard input, which is empty from now on."""
    taken = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return taken


def end_quickly() -> None:
    """Skip Python's last garbage collection at the end of this process.

    It takes seconds after an import of Airflow's servers. Threads and functions of `atexit` still
    run, but objects in cycles are not freed, as an open file of a module: not for processes that
    run user code.
    """
    atexit.register(gc.freeze)


def end_processes(processes: Sequence[psutil.Process], grace_s: float = 5.0) -> None:
    """End the given processes: SIGTERM, then SIGKILL to those left after a grace time.

    A process of another user, as a program that changes its user, stays, with a warning.
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
