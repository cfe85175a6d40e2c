"""Leases of a run: acquired once by role, found again, released, recorded."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial

from headrace import errors
from headrace.clusters import lease_client, lease_machines
from headrace.clusters.lease_files import sure_state
from headrace.clusters.lease_records import LeaseSpec, shown
from headrace.files.atomic import is_there, read_record, tolerating_storage
from headrace.leases.end_leases import cancel_steps, finalize, finalize_ended, try_finalize
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.recipe.teams import check_user
from headrace.runs.code_state import CodeSnapshot
from headrace.runs.owners import owner_process
from headrace.runs.planned_steps import steps_of
from headrace.runs.planning import planner, walltime_of
from headrace.runs.runs import Run
from headrace.states import LeaseState
from headrace.status.lease import bad_nodes, why_no_room

logger = logging.getLogger(__name__)

RELEASED = "Its lease was closed"
"""How the reason begins that is given to a step which still runs when its lease is released."""


def acquire(run: Run, role_name: str, ahead: Collection[str] = ()) -> str:
    """Id of the lease of this run and role: the living one, or a new one, which is starting.

    Once it has its place, those of the roles `ahead` are started as well, where that costs nothing.

    Raises:
        CapacityError: The site's `limits.max_leases`, or those of its user, are open, or others
            come first; it has its turn then, as long as it is asked for again.
        EndedRunError: The run has ended meanwhile, as if it is cancelled while it waits.
        AccessError: The site is not any more for who asked for the run.
        BudgetError: The run has cost `limits.budget`.
        SecretError: A secret of the site cannot be had.
        JobRefusedError: The queue refuses its job or, before any work, would that of a later step.
    """
    state = open_ledger().run(run.run_id).state
    if state.is_final:
        hint = f"Go on with it: headrace resume {run.run_id}, or clear its task in Airflow."
        raise errors.EndedRunError(f"Run {run.run_id} is {state.value}: it gets no machines", hint)
    lease_id = _entered(run, role_name, waits=True)
    for other in ahead:
        _open_ahead(run, other)
    _start(run, role_name, lease_id)
    return lease_id


def _entered(run: Run, role_name: str, *, waits: bool) -> str:
    record = open_ledger().latest_lease(lease_key(run, role_name))
    if record is not None and record.state.is_active:
        if _is_usable(run, record):
            return record.lease_id
        finalize(run, record)
    generation = 1 if record is None else int(record.lease_id.rsplit("-", 1)[1]) + 1
    lease_id = f"{run.run_id}-{role_name}-{generation}"
    check_user(run.site_now, run.requester)
    planner().check(run, role_name)
    run.secrets()
    record = recorded(run, role_name, lease_id)
    is_first = not open_ledger().leases(run_id=run.run_id, limit=1)
    _enter(run, record, waits=waits)
    if is_first:
        _ask_queues(run, record)
    return lease_id


def _open_ahead(run: Run, role_name: str) -> None:
    """Start the lease of a later step, where that costs nothing: its nodes are there sooner.

    Not when more than half of the site's places are taken; an error comes again when the step asks.
    """
    num_open = len(open_ledger().active_leases(run.site.name))
    is_full = 2 * num_open > run.site_now.limits.max_leases
    if is_full or not run.site.roles[role_name].is_here:
        return
    try:
        _start(run, role_name, _entered(run, role_name, waits=False))
    except errors.HeadraceError as error:
        logger.info("The lease of role %s is asked for again later: %s", role_name, error)


def _enter(run: Run, record: LeaseRecord, *, waits: bool) -> None:
    """Take a place of the site, if need be one of a lease that has ended unnoticed."""
    limits = run.site_now.limits
    ask = partial(
        open_ledger().add_lease, record, limits.max_leases, limits.leases_user, waits=waits
    )
    with suppress(errors.CapacityError):
        ask()
        return
    finalize_ended(run.site.name)
    try:
        ask()
    except errors.OwnLeasesError:
        raise
    except errors.CapacityError as error:
        raise errors.CapacityError(why_no_room(run) or error.what) from None


def _ask_queues(run: Run, record: LeaseRecord) -> None:
    """Find out whether the queues take the jobs of all roles, before the first one does any work.

    A queue that cannot be asked now is asked again when its job is submitted.
    """
    for role_name in dict.fromkeys(step.role for step in steps_of(run.recipe, run.request.kind)):
        try:
            spec = _spec(run, role_name, f"{run.run_id}-{role_name}-1")
            why = lease_machines.refusal(run.lease_folder(spec.lease_id), spec)
        except errors.BatchError as error:
            logger.info("Role %s was not asked for beforehand: %s", role_name, error.what)
            continue
        if why:
            refused = errors.JobRefusedError(
                f"The jobs of role {role_name} can never start. {why}",
                f"Correct the role in site {run.site.name}; `headrace site check` looks at it.",
            )
            open_ledger().set_lease_state(
                record.lease_id, LeaseState.FAILED, ended_at=time.time(), why_ended=str(refused)
            )
            raise refused


def current(run: Run, role_name: str) -> str | None:
    """Id of the living lease of this run and role, if there is one."""
    record = open_ledger().latest_lease(lease_key(run, role_name))
    if record is None or not record.state.is_active or not _is_usable(run, record):
        return None
    return record.lease_id


def note_ready(run: Run, lease_id: str) -> None:
    """Record addresses and job ids of a lease that has become ready."""
    info = lease_client.info(run.lease_folder(lease_id))
    if info is not None:
        open_ledger().set_lease_state(
            lease_id,
            LeaseState.READY,
            job_ids=info.job_ids,
            dashboard_url=info.dashboard_url,
            ready_at=info.ready_at,
        )


def release(run: Run, role_name: str, reason: str, *, wait: bool = True) -> bool:
    """Close the run's lease of this role and record it; harmless when there is none.

    A step that still runs on it is cancelled: it has no owner any more. Returns whether nothing
    is left to do; without `wait`, not while the lease's host closes it.
    """
    record = open_ledger().latest_lease(lease_key(run, role_name))
    if record is None or not record.state.is_active:
        return True
    folder = run.lease_folder(record.lease_id)
    if not wait and not is_there(folder.closed):
        lease_client.request_close(folder, reason)
        return False
    if sure_state(folder, run.site.limits.lost_after).is_active:
        for row in open_ledger().attempts(run.run_id):
            if row.lease_id == record.lease_id:
                with tolerating_storage(f"Step {row.key} is not cancelled"):  # its lease ends next
                    cancel_steps(run, [row], f"{RELEASED}: {reason}")
    try_finalize(run, record, reason)
    return True


def _is_usable(run: Run, record: LeaseRecord) -> bool:
    folder = run.lease_folder(record.lease_id)
    if is_there(folder.close) or is_there(folder.closed):
        return False
    if not is_there(folder.spec):  # the caller before ended ahead of the start, or it is removed
        attempts = open_ledger().attempts(run.run_id)
        has_begun = record.lease_id in {each.lease_id for each in attempts}
        if not is_there(folder.spec):  # else another caller has started it meanwhile
            return record.state is LeaseState.STARTING and not has_begun
    return sure_state(folder, run.site.limits.lost_after).is_active


def lease_key(run: Run, role_name: str) -> str:
    """What all leases of a run's role, one after the other, have in common in the ledger."""
    return f"{run.run_id}/{role_name}"


def _start(run: Run, role_name: str, lease_id: str) -> None:
    folder = run.lease_folder(lease_id)
    asked = read_record(folder.spec, LeaseSpec)
    spec = _spec(run, role_name, lease_id, asked)
    if asked is None and (walltime := spec.walltime) is not None:
        logger.info("Lease %s gets %s: %s", lease_id, shown(walltime.seconds), walltime.why)
    lease_client.start(folder, spec, run.secrets)


def _spec(run: Run, role_name: str, lease_id: str, asked: LeaseSpec | None = None) -> LeaseSpec:
    """Return the spec of a lease; its time is that of the spec that was `asked` for before."""
    role, kind = run.site.roles[role_name], run.request.kind
    walltime = asked.walltime if asked else walltime_of(run.recipe, run.site, role_name, kind, run)
    is_training = kind in ("train", "suite", "part") and role_name == run.recipe.train.role
    forks_ranks = is_training and run.recipe.model is not None and role.launcher is None
    records = open_ledger().leases(run_id=run.run_id)
    return LeaseSpec(
        lease_id=lease_id,
        key=lease_key(run, role_name),
        run_id=run.run_id,
        role_name=role_name,
        role=role if walltime is None else walltime.of(role),
        walltime=walltime,
        heartbeat_s=run.site.limits.heartbeat,
        lost_after_s=run.site.limits.lost_after,
        # the lease of a part outlives its process, which the suite's driver starts again
        owner=None if kind == "part" else owner_process(run.request.owner),
        code=run.recipe.code,
        code_sources=tuple(tree.source for tree in CodeSnapshot.of(run.folder).trees),
        tiers=run.site.tiers,
        exclude=bad_nodes(run, records) if role.leaves_nodes_out else (),
        preload=PRELOAD if forks_ranks else (),
    )


PRELOAD = ("headrace.steps.model_process",)
"""Has the nodes import what ranks need while they wait for the first step."""


def recorded(run: Run, role_name: str, lease_id: str) -> LeaseRecord:
    """The row of a lease that starts now."""
    return LeaseRecord(
        lease_id=lease_id,
        key=lease_key(run, role_name),
        run_id=run.run_id,
        site_name=run.site.name,
        role=role_name,
        backend=run.site.roles[role_name].backend,
        folder=str(run.lease_folder(lease_id).path),
        state=LeaseState.STARTING,
        created_at=time.time(),
        owner=run.user,
    )
