"""How the leases of a site stand, for tables and programs; read from files only."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from headrace.errors import StepError, UnknownNameError, nearest
from headrace.leases import client
from headrace.leases.reap import folders
from headrace.leases.records import AvoidedNode, EndedJob, LeaseInfo, NodeJob, PoolRecord
from headrace.record import Record
from headrace.states import LeaseState
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder, SiteFolder, StepFolder

logger = logging.getLogger(__name__)


class LeaseView(Record):
    """One lease at one moment."""

    lease_id: str
    """Identity of the lease."""
    run_id: str
    """The run it belongs to."""
    role: str
    """Name of the site's role."""
    kind: str
    """Pool or gang."""
    state: LeaseState
    """State of the lease."""
    nodes: int
    """Nodes of a gang, most nodes of a pool."""
    age_s: float
    """Seconds since it was asked for."""
    idle_s: float | None
    """Seconds since the last step ended; null while one runs and when it is not ready."""
    num_steps: int
    """Steps submitted to it."""
    num_running: int
    """Steps that have not ended."""
    dashboard_url: str
    """Dask dashboard; empty until it is ready."""
    folder: str
    """The lease's folder."""
    waits_for: str
    """What it waits for in a queue; empty when it does not wait, or there is no queue."""
    excludes: tuple[str, ...] = ()
    """Nodes that it was not to get, since earlier leases of its run failed on them."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that it, or jobs of it, failed on."""
    ended: tuple[EndedJob, ...] = ()
    """Jobs of a pool that ended by themselves, the newest last."""
    avoids: tuple[AvoidedNode, ...] = ()
    """Nodes of those that further jobs of a pool do without."""
    takes_all: str = ""
    """Why a pool takes bad nodes all the same; empty as long as it does not."""
    jobs: tuple[NodeJob, ...] = ()
    """Jobs that are, or will be, nodes of a pool; empty for a gang and without a queue."""
    why_ended: str
    """Why it ended; empty while it lives."""


def find(site: SiteFolder, lease_id: str) -> LeaseFolder:
    """A lease by its id.

    Raises:
        UnknownNameError: There is none; the nearest id is named.
    """
    known = {folder.lease_id: folder for folder in folders(site)}
    if lease_id not in known:
        raise UnknownNameError(
            f"There is no lease '{lease_id}' in {site.leases}", nearest(lease_id, known)
        )
    return known[lease_id]


def views(site: SiteFolder, *, ended: bool = False) -> tuple[LeaseView, ...]:
    """Leases of a site, the newest first.

    One that another release has written and this one cannot read is passed over, with a warning.

    Args:
        site: The site's folder.
        ended: Also those that have ended.
    """
    seen = [each for folder in folders(site) for each in _readable(folder)]
    kept = [each for each in seen if ended or each.state.is_active]
    return tuple(sorted(kept, key=lambda each: each.age_s))


def view(folder: LeaseFolder) -> LeaseView:
    """One lease.

    Raises:
        UnknownNameError: There is no such lease.
    """
    spec, info = client.spec(folder), client.info(folder)
    pool = read_record(folder.pool, PoolRecord)
    now = time.time()
    steps = steps_of(folder)
    num_running = sum(1 for step in steps if not _has_ended(step))
    state = client.state(folder, spec.lost_after_s)
    is_idle = state is LeaseState.READY and num_running == 0
    return LeaseView(
        lease_id=spec.lease_id,
        run_id=spec.run_id,
        role=spec.role_name,
        kind=spec.role.kind,
        state=state,
        nodes=spec.role.nodes,
        age_s=now - folder.spec.stat().st_mtime,
        idle_s=now - _busy_until(steps, info) if is_idle else None,
        num_steps=len(steps),
        num_running=num_running,
        dashboard_url=info.dashboard_url if info and state is LeaseState.READY else "",
        folder=str(folder.path),
        excludes=spec.exclude,
        bad_nodes=bad.nodes if (bad := client.bad_nodes(folder)) is not None else (),
        waits_for=client.lacks(folder) if state.is_active else "",
        jobs=pool.jobs if pool is not None and state.is_active else (),
        ended=pool.ended if pool is not None else (),
        avoids=pool.avoids if pool is not None else (),
        takes_all=pool.takes_all if pool is not None else "",
        why_ended=client.why_ended(folder),
    )


def _readable(folder: LeaseFolder) -> Iterator[LeaseView]:
    try:
        yield view(folder)
    except UnknownNameError:  # removed meanwhile
        return
    except StepError as error:
        logger.warning("Lease %s is passed over: %s", folder.lease_id, error)


def steps_of(folder: LeaseFolder) -> tuple[StepFolder, ...]:
    """Steps in the lease's mailbox, in order of their numbers."""
    found: list[StepFolder] = []
    while (step := folder.step(len(found) + 1)).path.exists():
        found.append(step)
    return tuple(found)


def _has_ended(step: StepFolder) -> bool:
    return step.exit.exists() or step.result.exists()


def _busy_until(steps: tuple[StepFolder, ...], info: LeaseInfo | None) -> float:
    ends = [file.stat().st_mtime for step in steps for file in (step.exit,) if file.exists()]
    return max(ends, default=info.ready_at if info else time.time())
