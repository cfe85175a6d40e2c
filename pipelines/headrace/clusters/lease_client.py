"""The control side of a lease: start it, see how it stands, end it. Files only, no Dask."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from headrace.batch.job_records import JobView
from headrace.clusters.images import pull
from headrace.clusters.lease_files import NEVER_STARTED, LeaseFiles
from headrace.clusters.lease_records import BadNodes, Ending, LeaseInfo, LeaseSpec, Waiting
from headrace.clusters.local import end_marked
from headrace.errors import CapacityError, JobRefusedError, SilentError
from headrace.files.atomic import (
    UNFINISHED,
    is_there,
    read_record,
    tolerating_storage,
    write_if_possible,
    write_marker,
    write_record,
)
from headrace.files.layout import LeaseFolder
from headrace.files.private import make_private
from headrace.processes.children import wait_until
from headrace.site_secrets import LeaseSecrets, handed_over
from headrace.states import LeaseState

GAVE_UP = "the gang did not come together"
"""Asks members to end; the host records why after it has closed the cluster."""

_POLL_S = 0.05


def start(
    folder: LeaseFolder, spec: LeaseSpec, secrets: Callable[[], LeaseSecrets] = LeaseSecrets
) -> None:
    """Start the lease's host, once: further calls, also at the same time, change nothing.

    What `secrets` gives is asked for when the host is about to start, and is gone with the lease.

    Returns when the host process is there, or waits in a queue; the machines come later (`state`).

    Raises:
        LeaseError: The host did not start.
        SiteError: The container's image cannot be pulled.
        JobRefusedError: The batch system refuses the job.
        CapacityError: Too many jobs are there already; ask again, the lease waits meanwhile.
        SilentError: The batch system gives no answer; likewise.
    """
    from headrace.clusters import lease_machines  # batch systems take time to import

    for container in spec.role.containers:
        pull(container, folder.path.parent.parent)
    make_private(folder.path)
    with FileLock(folder.start_lock, mode=0o600):
        if is_there(folder.host) or is_there(folder.closed) or is_there(folder.job):
            return
        given = secrets()
        if read_record(folder.spec, LeaseSpec) != spec:
            write_record(folder.spec, spec)
        try:
            with handed_over(folder, given):
                lease_machines.launch(folder, spec)
        except JobRefusedError as error:
            ending = Ending(state=LeaseState.FAILED, reason=str(error))
            write_record(folder.closed, ending)
            raise
        except (CapacityError, SilentError) as error:
            write_record(folder.waiting, Waiting(reason=error.what))
            raise
        folder.waiting.unlink(missing_ok=True)


def spec(folder: LeaseFolder) -> LeaseSpec:
    """Return what was asked for; raise UnknownNameError if the lease does not exist."""
    found = read_record(folder.spec, LeaseSpec)
    return LeaseFiles(folder=folder, records={LeaseSpec: found}).spec


def info(folder: LeaseFolder) -> LeaseInfo | None:
    """Return the machines and addresses of a lease; None until it is ready."""
    return read_record(folder.info, LeaseInfo)


def request_close(folder: LeaseFolder, reason: str) -> None:
    """Ask the host to end the lease, if its folder can be written; the first reason stays."""
    if not is_there(folder.close) and not is_there(folder.closed):
        with tolerating_storage(f"Lease {folder.lease_id} is not asked to end"):
            write_marker(folder.close, reason)


def await_end(folder: LeaseFolder, timeout_s: float) -> bool:
    """Wait a moment for a lease that may be about to end; return whether it is."""
    return wait_until(lambda: is_there(folder.close) or is_there(folder.closed), timeout_s, _POLL_S)


def end(folder: LeaseFolder, grace_s: float = 20.0, reason: str = "ended by request") -> None:
    """End the lease, also one that has ended: nothing of it runs any more, and its key is gone.

    The host has `grace_s` seconds to end by itself, before everything is killed.
    """
    files = LeaseFiles.read(folder)
    asked = files.get(LeaseSpec)
    if asked is None:  # never started, or removed; it must not start from now on
        end_marked(folder)
        write_if_possible(folder.closed, Ending(state=LeaseState.LOST, reason=NEVER_STARTED))
        return
    before, why = files.state(), files.why_ended or reason
    from headrace.clusters import lease_machines

    request_close(folder, why)
    if before is not LeaseState.LOST and is_there(folder.host):
        wait_until(
            lambda: is_there(folder.closed) and not LeaseFiles.read(folder).host_alive,
            grace_s,
            _POLL_S,
        )
    lease_machines.end_leftovers(folder, asked)
    shutil.rmtree(folder.tls, ignore_errors=True)  # others may be ending the lease as well
    _remove_unfinished(folder)
    if not is_there(folder.closed):
        final = LeaseState.CLOSED if before.is_active else before
        write_if_possible(folder.closed, Ending(state=final, reason=why))


def cause(folder: LeaseFolder) -> JobView | None:
    """How the job of a lost lease ended, asked of the batch system; before `end` cancels it.

    None when there is none, or the batch system knows no more than the lease's own files.
    """
    known = read_record(folder.cause, JobView)
    if known is not None:
        return known
    from headrace.clusters import lease_machines

    asked = read_record(folder.spec, LeaseSpec)
    found = None if asked is None else lease_machines.cause(folder, asked)
    if found is not None:
        write_if_possible(folder.cause, found)
        if found.bad_nodes:
            write_if_possible(folder.bad_nodes, BadNodes(nodes=found.bad_nodes, why=found.why))
    return found


def _remove_unfinished(folder: LeaseFolder) -> None:
    """Remove what processes of the lease were writing when they were killed.

    The control side may be writing its own files right now; these stay.
    """
    own = (folder.close, folder.closed, folder.cause, folder.bad_nodes, folder.waiting)
    kept = {each.name for each in (*own, folder.step(1).cancel)}
    for above, _, names in os.walk(folder.path):
        for name in filter(UNFINISHED.fullmatch, names):
            if name[1:].rpartition(".")[0] not in kept:
                Path(above, name).unlink(missing_ok=True)
