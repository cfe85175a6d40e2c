"""The mark by which every process of a lease is found, also when its parents have gone."""

from __future__ import annotations

import os
from collections.abc import Iterable

import psutil

from headrace.processes import end_processes
from headrace.storage.layout import LeaseFolder

LEASE_ID = "HEADRACE_LEASE_ID"
"""Environment variable: identity of the lease a process belongs to."""

LEASE_FOLDER = "HEADRACE_LEASE_FOLDER"
"""Environment variable: folder of that lease; tells apart equal ids of different sites."""

_ROUNDS = 5

# ignores SIGTERM, and ends by itself with the last process that uses it
_TRACKER = "multiprocessing.resource_tracker"


def mark(folder: LeaseFolder) -> dict[str, str]:
    """Environment variables that mark the processes of a lease."""
    return {
        LEASE_ID: folder.lease_id,
        LEASE_FOLDER: str(folder.path.resolve()),
        # Dask writes titles over the environment that the kernel shows, unless told not to
        "SPT_NOENV": "1",
    }


def marked(folders: Iterable[LeaseFolder]) -> dict[str, list[psutil.Process]]:
    """Living processes of this machine that belong to the given leases.

    Args:
        folders: Leases to look for.

    Returns:
        Processes by resolved lease folder; the caller and its ancestors are left out.
    """
    found: dict[str, list[psutil.Process]] = {str(each.path.resolve()): [] for each in folders}
    for process in psutil.process_iter():
        folder = _folder_of(process)
        if folder in found:
            found[folder].append(process)
    mine = _own_line()
    return {
        folder: [process for process in processes if process.pid not in mine]
        for folder, processes in found.items()
    }


def end_marked(folder: LeaseFolder, grace_s: float = 3.0) -> int:
    """End every process of a lease, those started meanwhile too.

    Returns:
        How many processes there were.
    """
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
        folder = process.environ().get(LEASE_FOLDER, "")
        return folder if folder and _counts(process.cmdline()) else ""
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or somebody else's
        return ""


def _counts(arguments: list[str]) -> bool:
    """Whether a process is something to end; one without arguments is just ending by itself."""
    return bool(arguments) and _TRACKER not in " ".join(arguments)


def _own_line() -> set[int]:
    me = psutil.Process(os.getpid())
    return {me.pid, *(parent.pid for parent in me.parents())}
