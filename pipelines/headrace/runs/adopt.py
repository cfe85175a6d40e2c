"""Leases that nobody has on record: entered again, with their runs and steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headrace.clusters import client
from headrace.clusters.overview import folders
from headrace.clusters.records import LeaseSpec
from headrace.errors import HeadraceError, StepError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder, StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import AttemptRecord
from headrace.runs import leases
from headrace.runs.runs import open_run, recorded, run_of_folder
from headrace.runs.steps import record_outcome
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import StepSpec

_NO_LIMIT = 2**31
"""What runs already is entered, however many leases the site allows."""


def adopt(site: SiteFolder) -> tuple[str, ...]:
    """Enter the open leases of a site that the ledger does not know, from the files they left.

    Their runs come with all their leases and steps, also the ended ones, so that whoever asks for
    the same run again goes on where it is. Nothing is submitted, cancelled or changed but the
    ledger; a second call finds nothing more.

    Returns:
        One line for each open lease that the ledger did not know.
    """
    by_run: dict[str, list[LeaseFolder]] = defaultdict(list)
    for folder in folders(site):
        by_run[client.spec(folder).run_id].append(folder)
    return tuple(line for run_id, found in by_run.items() for line in _adopt(site, run_id, found))


def _adopt(site: SiteFolder, run_id: str, found: Sequence[LeaseFolder]) -> Iterator[str]:
    known = {record.lease_id for record in open_ledger().leases(run_id=run_id)}
    new = [folder for folder in found if not folder.closed.exists()]
    new = [folder for folder in new if folder.lease_id not in known]
    if not new:
        return
    try:
        _enter_run(site, run_id)
    except HeadraceError as error:
        yield from (f"lease {folder.lease_id}: left alone: {error.what}" for folder in new)
        return
    jobs = {folder.lease_id: client.find_job(folder) for folder in new}
    for folder in sorted(found, key=lambda each: each.spec.stat().st_mtime):
        _enter_lease(folder)
    for folder in new:
        state = client.state(folder, client.spec(folder).lost_after_s)
        job = jobs[folder.lease_id]
        yield f"lease {folder.lease_id}: {state.value}{f', {job}' if job else ''}, run {run_id}"


def _enter_run(site: SiteFolder, run_id: str) -> None:
    run = run_of_folder(run_id, site.run(run_id))
    open_ledger().add_run(recorded(run, run.folder.recipe.stat().st_mtime))
    holder = open_ledger().run_by_key(run.request.key)
    if holder is not None and holder.run_id != run_id:
        raise StepError(
            f"run {run_id} was asked for again meanwhile, as {holder.run_id}; "
            "`headrace lease close` ends the lease"
        )


def _enter_lease(folder: LeaseFolder) -> None:
    spec = client.spec(folder)
    record = leases.recorded(open_run(spec.run_id), spec.role_name, spec.lease_id)
    changes = {"created_at": folder.spec.stat().st_mtime, **_found(folder, spec)}
    open_ledger().add_lease(replace(record, **changes), max_active=_NO_LIMIT)
    for step in mailbox.submitted(folder):
        _enter_attempt(folder, step)


def _found(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, Any]:
    """How a lease stands; one that was lost and not closed is open: something may be left."""
    info = client.info(folder)
    if not folder.closed.exists():
        if info is None:
            return {"state": LeaseState.STARTING}
        return {
            "state": LeaseState.READY,
            "job_ids": info.job_ids,
            "dashboard_url": info.dashboard_url,
            "ready_at": info.ready_at,
        }
    return {
        "state": client.state(folder, spec.lost_after_s),
        "job_ids": info.job_ids if info else (),
        "ended_at": folder.closed.stat().st_mtime,
        "why_ended": client.why_ended(folder),
    }


def _enter_attempt(lease: LeaseFolder, step: StepFolder) -> None:
    spec = read_record(step.spec, StepSpec)
    if spec is None:  # removed meanwhile
        return
    open_ledger().add_attempt(
        AttemptRecord(
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
    )
    result = mailbox.outcome(step)
    if result is None and lease.closed.exists():
        result = mailbox.lost(step, client.why_ended(lease))
    if result is not None:
        record_outcome(spec.run_id, spec.name, spec.attempt, result)
