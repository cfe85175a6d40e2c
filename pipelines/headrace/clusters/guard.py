"""The processes of a lease: marked in their environment, and ended when their host was killed.

`python -m headrace.clusters.guard LEASE_DIR`, standard input a pipe from the host, outlives a host
that is killed just long enough to end what it left: the kernel closes the pipe, whatever the cause.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from headrace.clusters.backends import backend
from headrace.clusters.records import LeaseSpec
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.processes import end_processes

logger = logging.getLogger(__name__)

LEASE_ID = "HEADRACE_LEASE_ID"
"""Environment variable: identity of the lease a process belongs to."""

_LEASE_FOLDER = "HEADRACE_LEASE_FOLDER"  # tells apart equal ids of different sites
_ROUNDS = 5
_DONE = b"done"
_STOP_TIMEOUT_S = 5.0

# ignores SIGTERM, and ends by itself with the last process that uses it
_TRACKER = "multiprocessing.resource_tracker"


def mark(folder: LeaseFolder) -> dict[str, str]:
    """Environment variables that mark the processes of a lease."""
    return {
        LEASE_ID: folder.lease_id,
        _LEASE_FOLDER: str(folder.path.resolve()),
        # Dask writes titles over the environment that the kernel shows, unless told not to
        "SPT_NOENV": "1",
    }


def marked(folders: Iterable[LeaseFolder]) -> dict[str, list[psutil.Process]]:
    """Living processes of leases on this machine, but the caller's own line, by resolved folder."""
    found: dict[str, list[psutil.Process]] = {str(each.path.resolve()): [] for each in folders}
    me = psutil.Process(os.getpid())
    own_line = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        folder = _folder_of(process)
        if folder in found and process.pid not in own_line:
            found[folder].append(process)
    return found


def end_marked(folder: LeaseFolder, grace_s: float = 3.0) -> int:
    """End every process of a lease, those started meanwhile too; gives how many there were."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        processes = marked([folder])[str(folder.path.resolve())]
        if not processes:
            break
        ended.update(process.pid for process in processes)
        end_processes(processes, grace_s)
    return len(ended)


def _folder_of(process: psutil.Process) -> str:
    try:
        folder = process.environ().get(_LEASE_FOLDER, "")
        return folder if folder and _counts(process.cmdline()) else ""
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or somebody else's
        return ""


def _counts(arguments: list[str]) -> bool:
    """Whether a process is something to end; one without arguments is just ending by itself."""
    return bool(arguments) and _TRACKER not in " ".join(arguments)


class Guard:
    """The host's handle of its guard process."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.clusters.guard", str(folder.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the guard: the host has ended everything itself."""
        try:
            self._process.communicate(_DONE, timeout=_STOP_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()


def main(arguments: list[str]) -> int:
    """Entry point of the guard process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s guard: %(message)s")
    if sys.stdin.buffer.read() == _DONE:
        return 0
    folder = LeaseFolder(Path(arguments[0]))
    num_ended = end_marked(folder)
    logger.warning("The host was killed; ended %d processes that it left", num_ended)
    spec = read_record(folder.spec, LeaseSpec)
    if spec is not None:
        backend(spec.role.backend).kill_leftovers(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
