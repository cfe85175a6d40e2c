"""Puts ledger and machines right: ends what has no living owner, enters leases not on record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.clusters import lease_client, lease_machines
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_folders import folders
from headrace.clusters.lease_records import Ending, LeaseInfo
from headrace.errors import HeadraceError, StepError
from headrace.execution.decisions import End, Memory, decide
from headrace.execution.step_attempts import act, observe, record_lost, write_off
from headrace.files.atomic import is_there, read_record, tolerating_storage
from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.informing import AFTERWARDS_S, inform
from headrace.leases import run_leases
from headrace.leases.end_leases import cancel_steps, finalize_ended, try_finalize
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, RunRecord
from headrace.recipe.backend import backend_of, known_backends
from headrace.runs.audit import Actor, note
from headrace.runs.lifecycle import finish_run, recorded
from headrace.runs.machine_records import note_unfinished, record_machines
from headrace.runs.owners import owner_is_gone
from headrace.runs.planned_steps import steps_of
from headrace.runs.planning import planner
from headrace.runs.refresh_usage import refresh_usage
from headrace.runs.runs import Run, open_run, outputs_of, run_of_folder, run_of_record
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec

ABANDONED = "its task or owner has ended"
"""Reason given to a step that the reaper cancels."""

_MOST_RUNS = 10_000
_COUNTED_EVERY_S = 30.0
_NO_LIMIT = 2**31
"""What runs already is entered, however many leases the site allows."""


def reap(
    owner_ended: Callable[[RunRecord], StepState | None],
    step_is_abandoned: Callable[[RunRecord, str], bool],
) -> tuple[str, ...]:
    """End steps, leases, runs and machines without a living owner; return a line for each.

    `owner_ended` gives the state of runs whose owner, not a process of this machine, has ended;
    `step_is_abandoned` for running steps of runs whose owner lives.
    """
    done: list[str] = []
    living: list[Run] = []
    records = going_on()
    attempts = open_ledger().attempts_of([record.run_id for record in records])
    for record in records:
        try:
            run = run_of_record(record)
        except HeadraceError as error:
            for attempt in open_ledger().attempts(record.run_id):
                record_lost(attempt, error.what)
            open_ledger().finish_run(record.run_id, StepState.LOST, time.time(), {})
            done.append(f"run {record.run_id}: recorded as lost: {error.what}")
            continue
        state = StepState.LOST if owner_is_gone(record.owner) else owner_ended(record)
        if state is not None:
            end_run(run, state)
            done.append(f"run {run.run_id}: its owner {record.owner} has ended; leases closed")
        else:
            rows = [row for row in attempts.get(run.run_id, ()) if not row.state.is_final]
            left = [row for row in rows if step_is_abandoned(record, row.step)]
            done += _cancelled(run, left, ABANDONED)
            living.append(run)
    done += finalize_ended()
    for name in known_backends():
        try:
            done += backend_of(name).reap()
        except HeadraceError as error:  # of a package that cannot be loaded
            done.append(f"what backend {name} has left was not looked for: {error.what}")
    counted = partial(refresh_usage, older_than_s=_COUNTED_EVERY_S)
    inform(None, "accounting", counted, within_s=AFTERWARDS_S)
    for run in living:
        planner().enforce(run)
    inform(None, "accounting", note_unfinished, within_s=AFTERWARDS_S)
    return tuple(done)


def going_on() -> tuple[RunRecord, ...]:
    """The runs that have not ended, the newest first."""
    return open_ledger().runs(limit=_MOST_RUNS, states=(StepState.RUNNING,))


def end_run(run: Run, state: StepState, reason: str = ABANDONED) -> None:
    """End a run with everything that belongs to it, and record its final state and the reason."""
    end_steps(run, reason)
    finish_run(run, state)


def end_steps(run: Run, reason: str) -> None:
    """End the steps and leases of a run, and record how they ended."""
    _cancelled(run, open_ledger().attempts(run.run_id), reason)
    for record in open_ledger().leases(run_id=run.run_id):
        if record.state.is_active:
            try_finalize(run, record, reason)
    for step in steps_of(run.recipe, run.request.kind):
        memory = Memory(is_ending=True)
        while not isinstance(action := decide(observe(run, step, memory), memory), End):
            memory = act(run, step, action, memory)


def _cancelled(run: Run, rows: Iterable[AttemptRecord], reason: str) -> list[str]:
    cancelled: list[AttemptRecord] = []
    for row in rows:  # a fault of one folder keeps no other from it
        with tolerating_storage(f"Step {row.key} is not cancelled"):
            cancelled += cancel_steps(run, [row], reason)
    return [f"step {row.key}: cancelled, {reason}" for row in cancelled]


def ask_to_stop(run: Run, by: Actor, step: str | None = None) -> tuple[str, ...]:
    """Ask the running steps of a run, or one of them, to stop; return their names.

    A run that has none, as it waits for a lease, is ended itself.

    Raises:
        StepError: None of them is running.
    """
    rows = open_ledger().attempts(run.run_id, step)
    asked = tuple(row.step for row in cancel_steps(run, rows, f"asked by {by}"))
    if not asked:
        state = open_ledger().run(run.run_id).state
        if step or state.is_final:
            hint = f"The run is {state.value}. Look at it: headrace status {run.run_id}"
            raise StepError(f"No step of run {run.run_id} is running", hint)
        end_run(run, StepState.CANCELLED, f"asked by {by}")
    note(by, "cancel", run.run_id, ", ".join(asked))
    return asked


def close_lease(folder: LeaseFolder, by: Actor, grace_s: float, reason: str = "") -> None:
    """End a lease on behalf of `by`; it gets `grace_s` seconds to end by itself."""
    run_id = lease_client.spec(folder).run_id
    lease_client.end(folder, grace_s, f"{reason} (closed by {by})" if reason else f"closed by {by}")
    note(by, "close", run_id, " ".join(filter(None, (folder.lease_id, reason))))


def adopt(site: SiteFolder) -> tuple[str, ...]:
    """Enter runs and open leases of a site that the ledger does not know, from their files.

    A run comes with all its leases and steps. Only the ledger is changed; a second call finds
    nothing more. Returns a line for each unknown open lease, and for each run without any.
    """
    by_run: dict[str, list[LeaseFolder]] = defaultdict(list)
    for folder in folders(site):
        by_run[lease_client.spec(folder).run_id].append(folder)
    return tuple(line for run_id, found in by_run.items() for line in _adopt(site, run_id, found))


def _adopt(site: SiteFolder, run_id: str, found: Sequence[LeaseFolder]) -> Iterator[str]:
    known = {record.lease_id for record in open_ledger().leases(run_id=run_id)}
    new = [folder for folder in found if not is_there(folder.closed)]
    new = [folder for folder in new if folder.lease_id not in known]
    if known and not new:
        return
    try:
        run = _enter_run(site, run_id)
    except HeadraceError as error:
        yield from (f"lease {folder.lease_id}: left alone: {error.what}" for folder in new)
        return
    jobs = {each: lease_machines.find_job(each, lease_client.spec(each)) for each in new}
    for folder in sorted(found, key=lambda each: each.spec.stat().st_mtime):
        enter_lease(folder)
    for folder in new:
        state = LeaseFiles.read(folder).state()
        job = jobs[folder]
        yield f"lease {folder.lease_id}: {state.value}{f', {job}' if job else ''}, run {run_id}"
    if not new:
        yield _without_lease(run)


def _without_lease(run: Run) -> str:
    """What becomes of a run that was entered, and whose leases have all ended."""
    outputs, attempts = outputs_of(run.run_id), open_ledger().attempts(run.run_id)
    if all(step.name in outputs for step in steps_of(run.recipe, run.request.kind)):
        at = max(each.finished_at or each.created_at for each in attempts)
        open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, at, outputs)
        return f"run {run.run_id}: succeeded"
    return f"run {run.run_id}: no lease is open; go on with it: headrace resume {run.run_id}"


def _enter_run(site: SiteFolder, run_id: str) -> Run:
    run = run_of_folder(run_id, site.run(run_id))
    open_ledger().add_run(recorded(run, run.folder.recipe.stat().st_mtime))
    holder = open_ledger().run_by_key(run.request.key)
    if holder is not None and holder.run_id != run_id:
        raise StepError(
            f"run {run_id} was asked for again meanwhile, as {holder.run_id}; "
            "`headrace lease close` ends the lease"
        )
    return run


def enter_lease(folder: LeaseFolder) -> None:
    """Enter a lease of a known run with its steps; what the ledger has stays."""
    files = LeaseFiles.read(folder)
    spec = files.spec
    record = run_leases.recorded(open_run(spec.run_id), spec.role_name, spec.lease_id)
    entered = replace(record, **_changes(files))
    open_ledger().add_lease(entered, max_active=_NO_LIMIT)
    record_machines(entered)
    for step in mailbox.submitted(folder):
        _enter_attempt(folder, step)


def _changes(files: LeaseFiles) -> dict[str, Any]:
    """Return the columns of a lease; one that was lost and not closed may have left something."""
    info, ending = files.get(LeaseInfo), files.get(Ending)
    known: dict[str, Any] = {"created_at": files.asked_at}
    known["job_ids"] = () if info is None else info.job_ids
    if ending is not None:
        known["ended_at"] = files.folder.closed.stat().st_mtime
        return {**known, "state": ending.state, "why_ended": files.why_ended}
    if info is None:
        return {**known, "state": LeaseState.STARTING}
    ready = {"dashboard_url": info.dashboard_url, "ready_at": info.ready_at}
    return {**known, **ready, "state": LeaseState.READY}


def _enter_attempt(lease: LeaseFolder, step: StepFolder) -> None:
    spec = read_record(step.spec, StepSpec)
    if spec is None:  # removed meanwhile
        return
    row = AttemptRecord(
        run_id=spec.run_id,
        step=spec.name,
        kind=spec.kind,
        attempt=spec.attempt,
        key=spec.key,
        lease_id=lease.lease_id,
        number=step.number,
        state=StepState.RUNNING,
        created_at=step.spec.stat().st_mtime,
    )
    open_ledger().add_attempt(row)
    if is_there(lease.closed) or mailbox.outcome(step) is not None:
        write_off(lease, row)
