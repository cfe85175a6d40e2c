"""The control side of a lease: start it, see how it stands, end it. Files only, no Dask."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from headrace.batch.job_records import JobView
from headrace.clusters.backends import launcher_for
from headrace.clusters.lease_records import (
    BadNodes,
    Ending,
    HostRecord,
    LeaseInfo,
    LeaseSpec,
    PoolRecord,
    Waiting,
)
from headrace.clusters.lease_state import decide, host_alive, lease_status
from headrace.clusters.lifetime import BY_SIGNAL
from headrace.clusters.local import end_marked
from headrace.errors import CapacityError, JobRefusedError, SilentError, UnknownNameError
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
from headrace.site_secrets import LeaseSecrets, handed_over
from headrace.states import LeaseState

GAVE_UP = "the gang did not come together"
"""Asks members to end; the host itself tells why, when it has closed what there was."""

_POLL_S = 0.05
_NEVER_STARTED = "The lease was never started, or its folder has gone"


def start(
    folder: LeaseFolder, spec: LeaseSpec, secrets: Callable[[], LeaseSecrets] = LeaseSecrets
) -> None:
    """Start the lease's host, once: further calls, also at the same time, change nothing.

    What `secrets` gives is asked for when the host is about to start, and is gone with the lease.

    Returns when the host process is there, or waits in a queue; the machines come later (`state`).

    Raises:
        LeaseError: The host did not start.
        JobRefusedError: The batch system refuses the job.
        CapacityError: Too many jobs are there already; ask again, the lease waits meanwhile.
        SilentError: The batch system gives no answer; likewise.
    """
    make_private(folder.path)
    with FileLock(folder.start_lock, mode=0o600):
        if is_there(folder.host) or is_there(folder.closed) or is_there(folder.job):
            return
        given = secrets()
        if read_record(folder.spec, LeaseSpec) != spec:
            write_record(folder.spec, spec)
        try:
            with handed_over(folder, given):
                launcher_for(spec.role.backend).launch(folder, spec)
        except JobRefusedError as error:
            ending = Ending(state=LeaseState.FAILED, reason=str(error))
            write_record(folder.closed, ending)
            raise
        except (CapacityError, SilentError) as error:
            write_record(folder.waiting, Waiting(reason=error.what))
            raise
        folder.waiting.unlink(missing_ok=True)


def spec(folder: LeaseFolder) -> LeaseSpec:
    """What was asked for.

    Raises:
        UnknownNameError: There is no such lease.
    """
    found = read_record(folder.spec, LeaseSpec)
    if found is None:
        raise UnknownNameError(f"There is no lease '{folder.lease_id}' in {folder.path.parent}")
    return found


def state(folder: LeaseFolder, lost_after_s: float) -> LeaseState:
    """How the lease stands, from its files and a look at its host process.

    A lease that was never started, or whose folder has gone, counts as lost, as does one without a
    heartbeat for `lost_after_s`. Who would end one for that looks twice: `sure_state`.
    """
    return decide(lease_status(folder), lost_after_s)


def info(folder: LeaseFolder) -> LeaseInfo | None:
    """What there is; None until the lease is ready."""
    return read_record(folder.info, LeaseInfo)


def find_job(folder: LeaseFolder) -> str:
    """What users know the job by that gives the lease's machines; empty when there is none."""
    asked = spec(folder)
    return launcher_for(asked.role.backend).find_job(folder, asked)


def request_close(folder: LeaseFolder, reason: str) -> None:
    """Ask the host to end the lease, if its folder can be written; the first reason stays."""
    if not is_there(folder.close) and not is_there(folder.closed):
        with tolerating_storage(f"Lease {folder.lease_id} is not asked to end"):
            write_marker(folder.close, reason)


def await_end(folder: LeaseFolder, timeout_s: float) -> bool:
    """Wait a moment for a lease that may be about to end; gives whether it is."""
    return _wait(lambda: is_there(folder.close) or is_there(folder.closed), timeout_s)


def end(folder: LeaseFolder, grace_s: float = 20.0, reason: str = "ended by request") -> None:
    """End the lease, also one that has ended: nothing of it runs any more, and its key is gone.

    The host has `grace_s` seconds to end by itself, before everything is killed.
    """
    asked = read_record(folder.spec, LeaseSpec)
    if asked is None:  # never started, or removed; it must not start from now on
        end_marked(folder)
        write_if_possible(folder.closed, Ending(state=LeaseState.LOST, reason=_NEVER_STARTED))
        return
    before = state(folder, asked.lost_after_s)
    why = why_ended(folder) or reason
    request_close(folder, why)
    if before is not LeaseState.LOST and is_there(folder.host):
        _wait(lambda: is_there(folder.closed) and not host_alive(folder), grace_s)
    launcher_for(asked.role.backend).kill_leftovers(folder)
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
    asked = read_record(folder.spec, LeaseSpec)
    found = None if asked is None else launcher_for(asked.role.backend).cause(folder, asked)
    if found is not None:
        write_if_possible(folder.cause, found)
        if found.bad_nodes:
            write_if_possible(folder.bad_nodes, BadNodes(nodes=found.bad_nodes, why=found.why))
    return found


def bad_nodes(folder: LeaseFolder) -> BadNodes | None:
    """Nodes that are to blame for the lease's failure; None when none is known to be."""
    return read_record(folder.bad_nodes, BadNodes)


def why_ended(folder: LeaseFolder) -> str:
    """Why the lease ended, in words for the user; empty while it lives."""
    seen = lease_status(folder)
    if seen.ending is not None:  # the batch system may know the cause
        known = read_record(folder.cause, JobView) if ended_by_itself(folder) else None
        is_told = known is None or seen.ending.reason.startswith(known.why)
        return seen.ending.reason if known is None or is_told else known.why
    asked = read_record(folder.spec, LeaseSpec)
    if asked is None:
        return _NEVER_STARTED
    if decide(seen, asked.lost_after_s).is_active:
        return ""
    if seen.job is not None and seen.job.is_ended:
        return f"{seen.job.why}; see {folder.log}" if is_there(folder.log) else seen.job.why
    host = read_record(folder.host, HostRecord)
    if host is None:
        return f"The host process never reported; see {folder.log}"
    name = f"process {host.process.pid} on {host.process.host}"
    if seen.host_alive is False:
        return f"The lease's host ({name}) died; see {folder.log}"
    return f"The lease's host ({name}) gave no heartbeat for {seen.silent_s:.0f} s"


def ended_by_itself(folder: LeaseFolder) -> bool:
    """Whether the lease has ended without anybody of headrace asking, so that there is a cause."""
    ending = read_record(folder.closed, Ending)
    return ending is not None and (
        ending.state is LeaseState.LOST or ending.reason.startswith(BY_SIGNAL)
    )


class QueueWait(NamedTuple):
    """What a lease waits for in a queue."""

    why: str = ""
    """Empty when it does not wait."""
    starts_at: float | None = None
    """When it is expected to get nodes, seconds since the epoch; None when that is not known."""


def wait_of(folder: LeaseFolder, *, for_more: bool = False) -> QueueWait:
    """What a lease without any node waits for in a queue, or one that has work `for_more` nodes."""
    pool = None if is_there(folder.closed) else read_record(folder.pool, PoolRecord)
    if pool is not None:
        is_waiting = pool.waits_for and (for_more or not pool.num_here)
        return QueueWait(pool.waits_for, pool.starts_at) if is_waiting else QueueWait()
    if is_there(folder.info) or is_there(folder.host):
        return QueueWait()
    if not is_there(folder.job) and not is_there(folder.waiting):
        return QueueWait()
    job = lease_status(folder).job
    return QueueWait() if job is None or job.is_ended else QueueWait(job.why, job.starts_at)


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


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
