"""The leases of a site: how they stand, and the end of those that nobody answers for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from headrace.clusters import lease_client
from headrace.clusters.lease_records import (
    AvoidedNode,
    LeaseInfo,
    LeaseSpec,
    PoolJobView,
    PoolRecord,
)
from headrace.clusters.lease_state import lease_status, sure_states
from headrace.clusters.local import marked
from headrace.clusters.node_marks import spans_of
from headrace.errors import SilentError, StepError, UnknownNameError, nearest
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.record import Record
from headrace.states import EndedJob, LeaseState

logger = logging.getLogger(__name__)

_GRACE_S = 10.0

Found = TypeVar("Found")


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
    nodes_here: int
    """Those that are there now."""
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
    expected_start: float | None = None
    """When it is expected to get the nodes it waits for, seconds since the epoch; null when the
    batch system does not tell."""
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
    jobs: tuple[PoolJobView, ...] = ()
    """Jobs that are, or will be, nodes of a pool; empty for a gang and without a queue."""
    why_ended: str
    """Why it ended; empty while it lives."""


def folders(site: SiteFolder) -> tuple[LeaseFolder, ...]:
    """All leases ever started on the site, in order of their ids."""
    if not site.leases.is_dir():
        return ()
    return tuple(LeaseFolder(spec.parent) for spec in sorted(site.leases.glob("*/spec.json")))


def num_open(leases: Path, lost_after_s: float, only: Collection[str] = ()) -> int:
    """How many leases in a site's folder of leases, of some or all, are open, by their files."""
    found = (leases / each for each in only) if only else leases.glob("*")
    known = map(LeaseFolder, found)
    return sum(
        lease_client.state(folder, lost_after_s).is_active
        for folder in known
        if is_there(folder.spec) and not is_there(folder.closed)
    )


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
    """
    kept = [each for _, each in _readable(folders(site), view) if ended or each.state.is_active]
    return tuple(sorted(kept, key=lambda each: each.age_s))


def view(folder: LeaseFolder) -> LeaseView:
    """One lease."""
    spec, info = lease_client.spec(folder), lease_client.info(folder)
    jobs = read_record(folder.pool, PoolRecord)  # none for a gang, and without a queue
    pool = jobs or PoolRecord()
    bad = lease_client.bad_nodes(folder)
    now = time.time()
    steps = steps_of(folder)
    num_running = sum(1 for step in steps if not (is_there(step.exit) or is_there(step.result)))
    state = lease_client.state(folder, spec.lost_after_s)
    is_idle = state is LeaseState.READY and num_running == 0
    wait = lease_client.wait_of(folder, for_more=True) if state.is_active else lease_client.Wait()
    return LeaseView(
        lease_id=spec.lease_id,
        run_id=spec.run_id,
        role=spec.role_name,
        kind=spec.role.kind,
        state=state,
        nodes=spec.role.nodes,
        nodes_here=_nodes_here(folder, jobs, spec.role.nodes) if state is LeaseState.READY else 0,
        age_s=now - folder.spec.stat().st_mtime,
        idle_s=now - _busy_until(steps, info) if is_idle else None,
        num_steps=len(steps),
        num_running=num_running,
        dashboard_url=info.dashboard_url if info and state is LeaseState.READY else "",
        folder=str(folder.path),
        excludes=spec.exclude,
        bad_nodes=() if bad is None else bad.nodes,
        waits_for=wait.why,
        expected_start=wait.starts_at,
        jobs=pool.jobs if state.is_active else (),
        ended=pool.ended,
        avoids=pool.avoids,
        takes_all=pool.takes_all,
        why_ended="" if state.is_active else lease_client.why_ended(folder),
    )


def _nodes_here(folder: LeaseFolder, pool: PoolRecord | None, nodes: int) -> int:
    """Of a ready lease; of instances of a gang its host keeps no list: they are all there."""
    if pool is not None:
        return pool.num_here
    joined = [each for each in spans_of(folder) if each.joined_at is not None]
    return sum(each.ended_at is None for each in joined) if joined else nodes


def _readable(
    known: Iterable[LeaseFolder], read: Callable[[LeaseFolder], Found]
) -> Iterator[tuple[LeaseFolder, Found]]:
    for folder in known:
        try:
            yield folder, read(folder)
        except UnknownNameError:  # removed meanwhile
            continue
        except StepError as error:
            logger.warning("Lease %s is passed over: %s", folder.lease_id, error)


def steps_of(folder: LeaseFolder) -> tuple[StepFolder, ...]:
    """Steps in the lease's mailbox, in order of their numbers."""
    found: list[StepFolder] = []
    while is_there((step := folder.step(len(found) + 1)).path):
        found.append(step)
    return tuple(found)


def _busy_until(steps: tuple[StepFolder, ...], info: LeaseInfo | None) -> float:
    ends = [step.exit.stat().st_mtime for step in steps if is_there(step.exit)]
    return max(ends, default=info.ready_at if info else time.time())


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A lease of which something is left that nobody answers for."""

    folder: LeaseFolder
    """The lease."""
    why: str
    """What is wrong with it."""
    num_processes: int
    """Processes of this machine that still carry its mark."""


def leftovers(site: SiteFolder) -> tuple[Leftover, ...]:
    """Leases that are lost, whose owner has gone, or that ended and left processes behind.

    One that another release has written and this one cannot read is passed over, with a warning.
    """
    known = folders(site)
    processes = marked(known)
    num_processes = {each: len(processes[str(each.path.resolve())]) for each in known}
    # all but the newest ones of a site have ended, and left nothing
    may_be_left = [each for each in known if num_processes[each] or not is_there(each.closed)]
    specs = dict(_readable(may_be_left, _checked_spec))
    states = sure_states({folder: spec.lost_after_s for folder, spec in specs.items()})
    whys = {each: _why_left(each, specs[each], states[each], num_processes[each]) for each in specs}
    return tuple(
        Leftover(folder=folder, why=why, num_processes=num_processes[folder])
        for folder, why in whys.items()
        if why
    )


def _checked_spec(folder: LeaseFolder) -> LeaseSpec:
    lease_status(folder)
    return lease_client.spec(folder)


def reap(site: SiteFolder) -> tuple[Leftover, ...]:
    """End all leftovers of a site; gives them. Safe to call at any time, also twice at once.

    One whose batch system gives no answer stays, and keeps no other from being ended.
    """
    return tuple(leftover for leftover in leftovers(site) if _end(leftover))


def _end(leftover: Leftover) -> bool:
    try:
        lease_client.end(leftover.folder, _GRACE_S, leftover.why)
    except SilentError as error:
        lease_id = leftover.folder.lease_id
        logger.warning("Lease %s is looked at again later: %s", lease_id, error.what)
        return False
    return True


def _why_left(folder: LeaseFolder, spec: LeaseSpec, state: LeaseState, num_processes: int) -> str:
    if state is LeaseState.LOST:
        return lease_client.why_ended(folder)
    if not state.is_active:
        return f"it has ended and left {num_processes} processes" if num_processes else ""
    owner = spec.owner
    if owner is not None and owner.is_here and not owner.is_alive:
        return f"its owner, process {owner.pid} on {owner.host}, has gone"
    return ""
