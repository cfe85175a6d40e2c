"""How leases stand: state, nodes, waits, use; which nodes they failed on; who holds them."""

from __future__ import annotations

import logging
import shlex
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict, Field

from headrace.clusters.lease_files import LeaseFiles, QueueWait
from headrace.clusters.lease_folders import folders, readable
from headrace.clusters.lease_records import BadNodes, LeaseInfo, PoolJobs, PoolRecord
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


class LeaseView(PoolJobs):
    """A lease at one moment; null: unknown, or not requested. A row of the ledger gives a part."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

    lease_id: str
    run_id: str = ""
    site: str = Field("", validation_alias="site_name")
    """Empty if only its folder was read."""
    role: str = ""
    kind: str = ""
    """`pool` or `gang`."""
    backend: str = ""
    folder: str
    state: LeaseState
    why_ended: str = ""
    """Why it ended; empty before its end."""
    expected_start: float | None = None
    """When it will get the nodes that it waits for, seconds since the epoch; null if unknown."""
    created_at: float | None = None
    """When it was requested, seconds since the epoch."""
    ready_at: float | None = None
    """When its machines were ready."""
    ended_at: float | None = None
    """When it ended; null before its end, and if only its folder was read."""
    nodes: int | None = None
    """Nodes of a gang, most nodes of a pool."""
    nodes_here: int = 0
    """Ready nodes."""
    num_steps: int | None = None
    """Steps submitted to it."""
    num_running: int | None = None
    """Steps that have not ended."""
    idle_s: float | None = None
    """Seconds since the last step ended; null while one runs, and before it is ready."""
    dashboard_url: str = ""
    """Secret link of its Dask dashboard; empty until it is ready, and never on a page."""
    has_dashboard: bool = False
    """Whether it has a Dask dashboard now."""
    usd_per_hour: float | None = None
    """Of its ready machines with a known price."""
    excludes: tuple[str, ...] = ()
    """Nodes that it excludes, because earlier leases of its run failed on them."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that it, or jobs of it, failed on."""
    running: tuple[str, ...] = ()
    """Names of the steps that run on it."""
    use: tuple[NodeRow, ...] = ()
    """The newest figures of each node that trains; others are not measured."""
    damage: str = ""
    """Why more is unknown: a file cannot be read; else empty."""

    @property
    def age_s(self) -> float | None:
        """Seconds since it was requested."""
        return None if self.created_at is None else time.time() - self.created_at


class LeasesPage(Record):
    """Open leases, the newest first, then the last ended ones."""

    now: float
    rows: tuple[LeaseView, ...]
    can_act: bool
    """Whether this user may close open ones."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """State of a step and its lease."""

    final: bool
    """Whether the step has ended; also True if it never can, because its lease has ended."""
    status: StepStatus
    lease: LeaseView


def look_lease(folder: LeaseFolder, lost_after_s: float | None = None) -> LeaseView:
    """Return the state of a lease and what it waits for; see `LeaseFiles.state`."""
    return _look(LeaseFiles.read(folder), lost_after_s)


def look(lease: LeaseFolder, step: StepFolder, lost_after_s: float | None = None) -> Look:
    """Return the state of a step and its lease."""
    view = look_lease(lease, lost_after_s)
    final = mailbox.outcome(step) is not None or not view.state.is_active
    return Look(final=final, status=mailbox.status(step), lease=view)


def lease_view(folder: LeaseFolder) -> LeaseView:
    """Return the state of a lease, by its files.

    Raises:
        UnknownNameError: It does not exist.
        StepError: A file of it is damaged, or of another release.
    """
    files = LeaseFiles.read(folder)
    spec, info, bad = files.spec, files.get(LeaseInfo), files.get(BadNodes)
    pool = files.get(PoolRecord) or PoolRecord()  # none for a gang, and without a queue
    steps = tuple(mailbox.submitted(folder))
    num_running = sum(map(_runs, steps))
    looked = _look(files, for_more=True)
    is_ready = looked.state is LeaseState.READY
    updates: dict[str, object] = {
        "run_id": spec.run_id,
        "role": spec.role_name,
        "kind": spec.role.kind,
        "backend": spec.role.backend,
        "nodes": spec.role.nodes,
        "created_at": files.asked_at,
        "ready_at": info.ready_at if info else None,
        "num_steps": len(steps),
        "num_running": num_running,
        "dashboard_url": looked.dashboard_url if is_ready else "",
        "has_dashboard": is_ready and looked.dashboard_url != "",
        "excludes": spec.exclude,
        "bad_nodes": () if bad is None else bad.nodes,
        "jobs": pool.jobs if looked.state.is_active else (),
        "ended": pool.ended,
        "avoids": pool.avoids,
        "takes_all": pool.takes_all,
    }
    if is_ready:
        updates["nodes_here"] = _nodes_here(files)
        updates["idle_s"] = None if num_running else time.time() - _busy_until(steps, info)
    return looked.model_copy(update=updates)


def _look(
    files: LeaseFiles, lost_after_s: float | None = None, *, for_more: bool = False
) -> LeaseView:
    state, info = files.state(lost_after_s), files.get(LeaseInfo)
    wait = files.wait(for_more=for_more) if state.is_active else QueueWait()
    return LeaseView(
        lease_id=files.folder.lease_id,
        folder=str(files.folder.path),
        state=state,
        why_ended="" if state.is_active else files.why_ended,
        waits_for=wait.why,
        expected_start=wait.starts_at,
        dashboard_url=info.dashboard_url if info else "",
    )


def find_lease(site: SiteFolder, lease_id: str) -> LeaseFolder:
    """Return a lease by its id.

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
    """Return the leases of a site by its folder, the newest first.

    Unreadable ones, as of another release, are left out with a warning.
    """
    found = (each for _, each in readable(folders(site), lease_view))
    kept = (each for each in found if ended or each.state.is_active)
    return tuple(sorted(kept, key=lambda each: each.created_at or 0.0, reverse=True))


def leases_in_use() -> tuple[LeaseView, ...]:
    """Return open leases of all sites of the ledger, with their load, the oldest first."""
    return tuple(filter(None, map(_in_use, open_ledger().active_leases())))


def leases_page(*, can_act: bool, sites: Sites = None) -> LeasesPage:
    """Return the leases of some sites, or of all, without secrets and paths."""
    ledger, prices = open_ledger(), defaultdict[str, float](float)
    for machine in ledger.machines(only_open=True):
        if machine.usd_per_hour is not None:
            prices[machine.lease_id] += machine.usd_per_hour
    rows = [
        _open_row(row, prices.get(row.lease_id))
        for row in reversed(ledger.active_leases())
        if sites is None or row.site_name in sites
    ]
    rows += map(LeaseView.model_validate, ledger.ended_leases(_MOST_ENDED, sites=sites))
    shown = (each.model_copy(update={"dashboard_url": "", "folder": ""}) for each in rows)
    return LeasesPage(now=time.time(), rows=tuple(shown), can_act=can_act)


def lost_nodes(folder: LeaseFolder) -> tuple[EndedJob, ...]:
    """Return jobs of a pool that ended early, from its folder, which may be removed later."""
    pool = read_record(folder.pool, PoolRecord)
    return () if pool is None else pool.ended


def bad_nodes(run: Run, records: Sequence[LeaseRecord]) -> tuple[str, ...]:
    """Return nodes that a run's leases, given the newest first, failed on; the newest last."""
    found: list[str] = []
    for record in records:
        bad = read_record(run.lease_folder(record.lease_id).bad_nodes, BadNodes)
        if bad is not None and not not_the_nodes(run, record, records):
            found += reversed(bad.nodes)
    return tuple(dict.fromkeys(found))[:_MOST_BAD_NODES][::-1]


def why_not_the_nodes(run: Run, lease_id: str) -> str:
    """Return what to correct if other nodes would fail like a lease's; empty if they may not."""
    records = open_ledger().leases(run_id=run.run_id)
    record = next((each for each in records if each.lease_id == lease_id), None)
    return "" if record is None else not_the_nodes(run, record, records)


def not_the_nodes(run: Run, record: LeaseRecord, records: Sequence[LeaseRecord]) -> str:
    """Return the same as `why_not_the_nodes`, given the row among all rows of the run."""
    folder = run.lease_folder(record.lease_id)
    symptom = symptom_of(folder)
    if symptom is None:
        return ""
    others = [each for each in records if each.key == record.key and each != record]
    symptoms = [symptom_of(run.lease_folder(each.lease_id)) for each in others]
    again = sum(each is not None and each.words == symptom.words for each in symptoms)
    num_times = symptom.num_nodes + again
    if num_times < 2:
        return ""
    return (
        f"{symptom.words}\n  It was the same {num_times} times, so that no node is at fault: "
        "correct `batch` (container, python, modules, prologue), `services` or the tiers of role "
        f"{record.role} in site {run.site.name}. See {folder.log}"
    )


def why_no_room(run: Run) -> str:
    """Return who holds the leases of a run's site, and how to free one; empty with room.

    If only the user's own limit is reached: the user's leases of other runs.
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


def _open_row(row: LeaseRecord, usd_per_hour: float | None) -> LeaseView:
    """Return a lease by its files, or by its row if they are gone or damaged."""
    known = {"site": row.site_name, "created_at": row.created_at, "usd_per_hour": usd_per_hour}
    try:
        return lease_view(LeaseFolder(Path(row.folder))).model_copy(update=known)
    except (HeadraceError, OSError) as error:
        damage = {"damage": f"It cannot be looked at: {error}"}
        return LeaseView.model_validate(row).model_copy(update=damage)


def _in_use(row: LeaseRecord) -> LeaseView | None:
    """Return an open lease with its load; None if it has ended, or its folder was removed."""
    folder = LeaseFolder(Path(row.folder))
    try:
        view = lease_view(folder)
    except UnknownNameError:
        return None
    if not view.state.is_active:
        return None
    changes: dict[str, object] = {"site": row.site_name}
    try:
        steps = [
            spec
            for step in mailbox.submitted(folder)
            if _runs(step) and (spec := read_record(step.spec, StepSpec)) is not None
        ]
        began_at = view.created_at or 0.0  # rows before are of an earlier lease of the run
        use = [row for step in steps for row in _usage(step) if row.at >= began_at]
        # one row for each node: trials that share a node report the same
        newest = {row.node: row for row in sorted(use, key=lambda row: row.at)}
        changes["running"] = tuple(each.name for each in steps)
        changes["use"] = tuple(newest[node] for node in sorted(newest))
    except StepError as error:
        changes["damage"] = error.what
    return view.model_copy(update=changes)


def _runs(step: StepFolder) -> bool:
    return not (is_there(step.exit) or is_there(step.result))


def _usage(step: StepSpec) -> Iterator[NodeRow]:
    """Yield the newest rows of the nodes on which a step, or trials of it, train."""
    run = RunFolder(Path(step.run_folder))
    if step.kind == "train":
        yield from newest_use(run).nodes
    elif step.kind == "suite":
        summary = read_record(run.summary, SuiteSummary)
        for trial in summary.running if summary else ():
            yield from newest_use(run.trial(trial.number)).nodes


def _nodes_here(files: LeaseFiles) -> int:
    """Return the ready nodes of a ready lease; a gang of instances without a list has all."""
    pool = files.get(PoolRecord)
    if pool is not None:
        return pool.num_here
    joined = [each for each in spans_of(files.folder) if each.joined_at is not None]
    return sum(each.ended_at is None for each in joined) if joined else files.spec.role.nodes


def _busy_until(steps: Iterable[StepFolder], info: LeaseInfo | None) -> float:
    ends = [step.exit.stat().st_mtime for step in steps if is_there(step.exit)]
    return max(ends, default=info.ready_at if info else time.time())


def _held(lease: LeaseRecord, holder: RunRecord, asking: Run) -> str:
    """Return a lease with its run and how to free it; a run that goes on would open it again."""
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
