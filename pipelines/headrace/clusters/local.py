"""Processes of leases on this machine: a host is started, marked ones are found and ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import psutil

from headrace.batch.job_records import JOB_STARTED
from headrace.clusters.lease_records import LeaseSpec
from headrace.errors import LeaseError
from headrace.files.atomic import is_there
from headrace.files.layout import LeaseFolder
from headrace.processes import zygote
from headrace.processes.children import Child, start_program
from headrace.processes.forking import APART, SPACE
from headrace.processes.identity import end_processes
from headrace.processes.working_folder import python_module

LEASE_ID = "HEADRACE_LEASE_ID"
"""Environment variable: id of the lease of a process."""

_HOST, DRIVERS = "headrace.clusters.host", "headrace.steps.run"
IMPORTED = (_HOST, "headrace.clusters.local_cluster", DRIVERS)
"""Modules of leases on this machine: hosts, and the higher layers that run drivers."""

_LEASE_FOLDER = "HEADRACE_LEASE_FOLDER"  # equal ids exist on different sites
_ROUNDS, _GRACE_S = 5, 3.0
_HOST_TIMEOUT_S = 90.0
_POLL_S = 0.05

# ignores SIGTERM, and ends by itself with the last process that uses it
_TRACKER = "multiprocessing.resource_tracker"


def mark(folder: LeaseFolder) -> dict[str, str]:
    """Return environment variables that mark the processes of a lease."""
    return {
        LEASE_ID: folder.lease_id,
        _LEASE_FOLDER: str(folder.path.resolve()),
        # without it Dask overwrites the environment that the kernel shows with process titles
        "SPT_NOENV": "1",
    }


def unmarked(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that outlives the lease from which it is started."""
    own = {LEASE_ID, _LEASE_FOLDER, "SPT_NOENV", JOB_STARTED, zygote.KEEP_WARM, APART, SPACE}
    own |= {*environment.get(APART, "").split()}
    return {name: value for name, value in environment.items() if name not in own}


def marked(folders: Iterable[LeaseFolder]) -> dict[str, list[psutil.Process]]:
    """Return living processes of leases here, by resolved folder, without this one's ancestors."""
    found: dict[str, list[psutil.Process]] = {str(each.path.resolve()): [] for each in folders}
    me = psutil.Process(os.getpid())
    own_line = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        folder = _folder_of(process)
        if folder in found and process.pid not in own_line:
            found[folder].append(process)
    return found


def end_marked(folder: LeaseFolder) -> int:
    """End every process of a lease, also new ones; return how many there were."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        processes = marked([folder])[str(folder.path.resolve())]
        if not processes:
            break
        ended.update(process.pid for process in processes)
        end_processes(processes, _GRACE_S)
    return len(ended)


def _folder_of(process: psutil.Process) -> str:
    try:
        folder, arguments = process.environ().get(_LEASE_FOLDER, ""), " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # ended, or of another user
        return ""
    # a process without arguments is just ending
    return folder if arguments and _TRACKER not in arguments else ""


def start_host(folder: LeaseFolder, spec: LeaseSpec, keep_warm_s: float = 0.0) -> None:
    """Start the host process on this machine; it detaches itself and outlives the caller.

    It and its children are forked from zygotes that stay for `keep_warm_s`, unless that is 0.
    """
    environment = {**os.environ, **mark(folder), zygote.KEEP_WARM: f"{keep_warm_s:g}"}
    environment.pop(JOB_STARTED, None)  # this lease outlives a job from which it is started
    command = python_module(_HOST, str(folder.path))
    host = Child(name="host", command=command, log=folder.log, env=environment)
    process = zygote.fork(IMPORTED, host, wait=True)
    if process is None:
        process = start_program(replace(host, command=(*command, "--detach")), {})
    see = f"See {folder.log}."
    deadline = time.monotonic() + _HOST_TIMEOUT_S
    while not (is_there(folder.host) or is_there(folder.closed)):
        if code := max(process.poll() or 0, 0):
            what = f"did not start (exit code {code})"
            raise LeaseError(f"The host of lease {spec.lease_id} {what}", see)
        if time.monotonic() > deadline:
            what = f"did not report within {_HOST_TIMEOUT_S:g} s"
            raise LeaseError(f"The host of lease {spec.lease_id} {what}", see)
        time.sleep(_POLL_S)
