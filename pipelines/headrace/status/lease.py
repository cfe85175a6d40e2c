"""How leases stand: state, nodes, waits, use; which nodes they failed on; who holds them."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.clusters.lease_files import LeaseFiles, QueueWait
from headrace.clusters.lease_folders import folders, readable
from headrace.clusters.lease_records import (
    AvoidedNode,
    BadNodes,
    LeaseInfo,
    PoolJobView,
    PoolRecord,
)
from headrace.clusters.node_marks import spans_of
from headrace.clusters.preflight import symptom_of
from headrace.errors import HeadraceError, StepError, UnknownNameError, nearest
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder, StepFolder
from headrace.ledger.lease_slots import why_own_full
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord, RunRecord
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.owners import owner_is_gone, owner_process
from headrace.states import EndedJob, LeaseState
from headrace.steps import mailbox
from headrace.steps.history import NodeRow, newest_use
from headrace.steps.mailbox import StepSpec, StepStatus
from headrace.suites.records import SuiteSummary

if TYPE_CHECKING:  # leases are looked at without recipes
    from headrace.runs.runs import Run

logger = logging.getLogger(__name__)

_MOST_ENDED = 50
_MOST_BAD_NODES = 8
"""A cluster that fails on more nodes than these is not healed by leaving some out."""
_MOST_SHOWN = 8
_OF_ROWS = (
    *("lease_id", "run_id", "role", "backend", "folder", "state", "created_at", "ready_at"),
    "why_ended",
)


class LeaseView(Record):
    """A lease at one moment; null is what is not known, or was not asked for."""

    lease_id: str
    run_id: str = ""
    site: str = ""
    """Empty where only its folder was looked at."""
    role: str = ""
    kind: str = ""
    """`pool` or `gang`."""
    backend: str = ""
    folder: str
    state: LeaseState
    why_ended: str = ""
    """Why it ended; empty while it lives."""
    waits_for: str = ""
    """What it waits for in a queue; empty if it does not wait."""
    expected_start: float | None = None
    """When it is expected to get the nodes it waits for, seconds since the epoch; null when the
    batch system does not tell."""
    created_at: float | None = None
    """When it was asked for, seconds since the epoch."""
    ready_at: float | None = None
    """When its machines were there."""
    nodes: int | None = None
    """Nodes of a gang, most nodes of a pool."""
    nodes_here: int = 0
    """Those that are there now."""
    num_steps: int | None = None
    """Steps submitted to it."""
    num_running: int | None = None
    """Steps that have not ended."""
    idle_s: float | None = None
    """Seconds since the last step ended; null while one runs and when it is not ready."""
    dashboard_url: str = ""
    """Secret link of its Dask dashboard; empty until it is ready, and never on a page."""
    has_dashboard: bool = False
    """Whether its Dask dashboard is there."""
    usd_per_hour: float | None = None
    """Of its machines that are there and whose prices are known."""
    excludes: tuple[str, ...] = ()
    """Nodes that it was not to get, since earlier leases of its run failed on them."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that it, or jobs of it, failed on."""
    jobs: tuple[PoolJobView, ...] = ()
    """Jobs that are, or will be, nodes of a pool; empty for a gang and without a queue."""
    ended: tuple[EndedJob, ...] = ()
    """Jobs of a pool that ended by themselves, the newest last."""
    avoids: tuple[AvoidedNode, ...] = ()
    """Nodes of those that further jobs of a pool do without."""
    takes_all: str = ""
    """Why a pool takes bad nodes all the same; empty as long as it does not."""
    running: tuple[str, ...] = ()
    """Names of the steps that run on it."""
    use: tuple[NodeRow, ...] = ()
    """The newest figures of each node that trains; others are not measured."""
    damage: str = ""
    """Why no more is known: a file cannot be read; else empty."""

    @property
    def age_s(self) -> float | None:
        """Seconds since it was asked for."""
        return None if self.created_at is None else time.time() - self.created_at


class LeasesPage(Record):
    """Open leases, the newest first, then those that have ended last."""

    now: float
    rows: tuple[LeaseView, ...]
    can_act: bool
    """Whether who asks may close those that are open."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a step and its lease stand."""

    final: bool
    """Whether the step has ended, or its lease has and so it never will."""
    status: StepStatus
    lease: LeaseView


def look_lease(folder: LeaseFolder, lost_after_s: float | None = None) -> LeaseView:
    """Return whether a lease lives; see `LeaseFiles.state`."""
    files = LeaseFiles.read(folder)
    info = files.get(LeaseInfo)
    return LeaseView(dashboard_url=info.dashboard_url if info else "", **_life(files, lost_after_s))


def look(lease: LeaseFolder, step: StepFolder, lost_after_s: float | None = None) -> Look:
    """Return how a step and its lease stand."""
    view = look_lease(lease, lost_after_s)
    final = mailbox.outcome(step) is not None or not view.state.is_active
    return Look(final=final, status=mailbox.status(step), lease=view)


def lease_view(folder: LeaseFolder) -> LeaseView:
    """Return how a lease stands, by its files.

    Raises:
        UnknownNameError: It is not there.
        StepError: A file of it is damaged, or of another release.
    """
    files = LeaseFiles.read(folder)
    spec, info, bad = files.spec, files.get(LeaseInfo), files.get(BadNodes)
    pool = files.get(PoolRecord) or PoolRecord()  # none for a gang, and without a queue
    steps = tuple(mailbox.submitted(folder))
    num_running = sum(map(_runs, steps))
    life = _life(files, for_more=True)
    is_ready = life["state"] is LeaseState.READY
    return LeaseView(
        run_id=spec.run_id,
        role=spec.role_name,
        kind=spec.role.kind,
        backend=spec.role.backend,
        nodes=spec.role.nodes,
        nodes_here=_nodes_here(files) if is_ready else 0,
        created_at=files.asked_at,
        ready_at=info.ready_at if info else None,
        idle_s=time.time() - _busy_until(steps, info) if is_ready and not num_running else None,
        num_steps=len(steps),
        num_running=num_running,
        dashboard_url=info.dashboard_url if info and is_ready else "",
        has_dashboard=bool(info and is_ready and info.dashboard_url),
        excludes=spec.exclude,
        bad_nodes=() if bad is None else bad.nodes,
        jobs=pool.jobs if life["state"].is_active else (),
        ended=pool.ended,
        avoids=pool.avoids,
        takes_all=pool.takes_all,
        **life,
    )


def _life(
    files: LeaseFiles, lost_after_s: float | None = None, *, for_more: bool = False
) -> dict[str, Any]:
    """Return the fields of a view that say whether the lease lives, and what it waits for."""
    state = files.state(lost_after_s)
    wait = files.wait(for_more=for_more) if state.is_active else QueueWait()
    return {
        "lease_id": files.folder.lease_id,
        "folder": str(files.folder.path),
        "state": state,
        "why_ended": "" if state.is_active else files.why_ended,
        "waits_for": wait.why,
        "expected_start": wait.starts_at,
    }


def find_lease(site: SiteFolder, lease_id: str) -> LeaseFolder:
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


def site_leases(site: SiteFolder, *, ended: bool = False) -> tuple[LeaseView, ...]:
    """Leases of a site by its folder, the newest first.

    One that another release has written and this one cannot read is passed over, with a warning.
    """
    kept = [
        each for _, each in readable(folders(site), lease_view) if ended or each.state.is_active
    ]
    return tuple(sorted(kept, key=lambda each: each.created_at or 0.0, reverse=True))


def leases_in_use() -> tuple[LeaseView, ...]:
    """Open leases of all sites that the ledger knows, the oldest first, and how busy they are."""
    return tuple(
        each
        for row in open_ledger().active_leases()
        if (each := _in_use(LeaseFolder(Path(row.folder)), row.site_name)) is not None
    )


def leases_page(*, can_act: bool, sites: Sites = None) -> LeasesPage:
    """The leases of some sites, or of all."""
    ledger = open_ledger()
    active = reversed(ledger.active_leases())
    ended = ledger.ended_leases(_MOST_ENDED, sites=sites)
    prices: dict[str, float] = {}
    for machine in ledger.machines(only_open=True):
        if machine.usd_per_hour is not None:
            so_far = prices.get(machine.lease_id, 0.0)
            prices[machine.lease_id] = so_far + machine.usd_per_hour
    rows = [
        _open_row(row, prices.get(row.lease_id))
        for row in active
        if sites is None or row.site_name in sites
    ]
    shown = [
        each.model_copy(update={"dashboard_url": "", "folder": ""})
        for each in (*rows, *map(_row, ended))
    ]
    return LeasesPage(now=time.time(), rows=tuple(shown), can_act=can_act)


def lost_nodes(folder: LeaseFolder) -> tuple[EndedJob, ...]:
    """Return jobs of a pool that ended early, from its folder, which may be removed later."""
    pool = read_record(folder.pool, PoolRecord)
    return () if pool is None else pool.ended


def bad_nodes(run: Run, records: Sequence[LeaseRecord]) -> tuple[str, ...]:
    """Nodes that a run's leases, given the newest first, failed on; a few, the newest last."""
    found: dict[str, None] = {}
    for record in reversed(records):
        bad = read_record(run.lease_folder(record.lease_id).bad_nodes, BadNodes)
        if bad is None or not_the_nodes(run, record, records):
            continue
        for node in bad.nodes:
            found.pop(node, None)
            found[node] = None
    return tuple(found)[-_MOST_BAD_NODES:]


def why_not_the_nodes(run: Run, lease_id: str) -> str:
    """What is missing, and where to put it right, where other nodes would fail like a lease's.

    Empty where other nodes may do better.
    """
    records = open_ledger().leases(run_id=run.run_id)
    record = next((each for each in records if each.lease_id == lease_id), None)
    return "" if record is None else not_the_nodes(run, record, records)


def not_the_nodes(run: Run, record: LeaseRecord, records: Sequence[LeaseRecord]) -> str:
    """As `why_not_the_nodes`, of one of all leases of the run."""
    folder = run.lease_folder(record.lease_id)
    symptom = symptom_of(folder)
    if symptom is None:
        return ""
    others = [each for each in records if each.key == record.key and each != record]
    symptoms = [symptom_of(run.lease_folder(each.lease_id)) for each in others]
    again = sum(1 for each in symptoms if each is not None and each.words == symptom.words)
    num_times = symptom.num_nodes + again
    if num_times < 2:
        return ""
    return (
        f"{symptom.words}\n  It was the same {num_times} times, so that no node is at fault: "
        "correct `batch` (container, python, modules, prologue) or the tiers of role "
        f"{record.role} in site {run.site.name}. See {folder.log}"
    )


def why_no_room(run: Run) -> str:
    """Who holds the leases of a run's site since when, and how to free one; empty with room.

    With room that its user may not take, which leases that user has in other runs: the run gives
    back its own by itself.
    """
    taken, limits = open_ledger().active_leases(run.site.name), run.site_now.limits
    most = limits.max_leases
    if len(taken) < most:
        others = (each for each in taken if each.run_id != run.run_id)
        return why_own_full(run.user, others, limits.leases_user)
    held = [_held(each, open_ledger().run(each.run_id), run) for each in taken[:_MOST_SHOWN]]
    first = (
        f"Site '{run.site.name}' has {len(taken)} leases open and allows {most} "
        "(limits.max_leases). They are held by:"
    )
    return "\n  ".join([first, *held])


def _row(row: LeaseRecord) -> LeaseView:
    return LeaseView(site=row.site_name, **{name: getattr(row, name) for name in _OF_ROWS})


def _open_row(row: LeaseRecord, usd_per_hour: float | None) -> LeaseView:
    """A lease by its files, or its row where they are gone or damaged."""
    known = {"site": row.site_name, "created_at": row.created_at, "usd_per_hour": usd_per_hour}
    try:
        return lease_view(LeaseFolder(Path(row.folder))).model_copy(update=known)
    except (HeadraceError, OSError) as error:
        return _row(row).model_copy(update={"damage": f"It cannot be looked at: {error}"})


def _in_use(folder: LeaseFolder, site: str) -> LeaseView | None:
    try:
        view = lease_view(folder)
    except UnknownNameError:  # its folder was removed meanwhile
        return None
    if not view.state.is_active:  # the ledger does not know yet
        return None
    changes: dict[str, object] = {"site": site}
    try:
        steps = [
            spec
            for step in mailbox.submitted(folder)
            if _runs(step) and (spec := read_record(step.spec, StepSpec)) is not None
        ]
        began_at = view.created_at or 0.0  # rows before are of an earlier lease of the run
        use = [row for step in steps for row in _usage(step) if row.at >= began_at]
        # one row for each node: trials that share one tell the same
        newest = {row.node: row for row in sorted(use, key=lambda row: row.at)}
        changes["running"] = tuple(each.name for each in steps)
        changes["use"] = tuple(newest[node] for node in sorted(newest))
    except StepError as error:
        changes["damage"] = error.what
    return view.model_copy(update=changes)


def _runs(step: StepFolder) -> bool:
    return not (is_there(step.exit) or is_there(step.result))


def _usage(step: StepSpec) -> Iterator[NodeRow]:
    """Newest rows of the nodes on which a step, or trials of it, train."""
    run = RunFolder(Path(step.run_folder))
    if step.kind == "train":
        yield from newest_use(run).nodes
    elif step.kind == "suite":
        summary = read_record(run.summary, SuiteSummary)
        for trial in summary.running if summary else ():
            yield from newest_use(run.trial(trial.number)).nodes


def _nodes_here(files: LeaseFiles) -> int:
    """Of a ready lease; of instances of a gang its host keeps no list: they are all there."""
    pool = files.get(PoolRecord)
    if pool is not None:
        return pool.num_here
    joined = [each for each in spans_of(files.folder) if each.joined_at is not None]
    return sum(each.ended_at is None for each in joined) if joined else files.spec.role.nodes


def _busy_until(steps: Iterable[StepFolder], info: LeaseInfo | None) -> float:
    ends = [step.exit.stat().st_mtime for step in steps if is_there(step.exit)]
    return max(ends, default=info.ready_at if info else time.time())


def _held(lease: LeaseRecord, holder: RunRecord, asking: Run) -> str:
    """A living run would open its lease anew, so that itself must be asked to stop."""
    since = time.strftime("%a %d %b %H:%M", time.localtime(lease.created_at))
    process, is_gone = owner_process(holder.owner), owner_is_gone(holder.owner)
    owner, way = holder.owner, f"headrace cancel {lease.run_id}"
    if process is not None:
        owner = f"process {process.pid} on {process.host}{', which has ended' if is_gone else ''}"
    if is_gone:
        way = f"headrace lease close {lease.lease_id} --site {shlex.quote(asking.request.site)}"
    return (
        f"run {holder.run_id}, role {lease.role}, lease {lease.lease_id}, since {since}, "
        f"by {owner}; to free it: {way}"
    )
