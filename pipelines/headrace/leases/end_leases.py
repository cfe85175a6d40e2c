"""Leases that have ended, or must: nothing is left of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from headrace.batch.job_records import JobView
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles, sure_states
from headrace.clusters.lease_folders import checked, readable
from headrace.errors import BatchError, HeadraceError, SilentError, StepError
from headrace.files.atomic import is_there
from headrace.files.layout import LeaseFolder
from headrace.informing import AFTERWARDS_S, inform
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord
from headrace.runs.machine_records import record_machines
from headrace.runs.owners import owner_is_gone
from headrace.runs.runs import Run, run_of_record
from headrace.runs.usage import note_usage
from headrace.states import EndedJob, LeaseState
from headrace.status.lease import lost_nodes
from headrace.steps import mailbox

logger = logging.getLogger(__name__)

_GONE = "its owner has ended before it had machines"


def cancel_steps(run: Run, rows: Iterable[AttemptRecord], reason: str) -> list[AttemptRecord]:
    """Ask attempts to stop that are in a mailbox and have not ended; return these."""
    asked = []
    for row in rows:
        lease = run.lease_folder(row.lease_id)
        folder = None if row.state.is_final else mailbox.find(lease, row.key)
        if folder is not None and mailbox.outcome(folder) is None:
            mailbox.request_cancel(folder, reason)
            asked.append(row)
    return asked


def finalize(run: Run, record: LeaseRecord, reason: str = "ended by request") -> None:
    """Make sure nothing is left of a lease and record how it ended.

    The reason is written down unless the lease has ended by itself.
    """
    folder = run.lease_folder(record.lease_id)
    files = LeaseFiles.read(folder)
    state = files.state(run.site.limits.lost_after)
    has_failed = state in (LeaseState.LOST, LeaseState.FAILED)
    if has_failed or files.ended_by_itself:
        with suppress(BatchError):  # the queue does not answer; the lease ends all the same
            lease_client.cause(folder)
    lease_client.end(folder, reason=reason)
    record_machines(record)
    why = LeaseFiles.read(folder).why_ended
    final = LeaseState.CLOSED if state.is_active else state
    ended: tuple[EndedJob, ...] = ()
    with suppress(StepError):  # a damaged record of its nodes keeps no lease open
        ended = lost_nodes(folder)
    open_ledger().set_lease_state(
        record.lease_id, final, ended_at=time.time(), why_ended=why, lost_nodes=ended
    )
    inform(run.folder, "accounting", partial(note_usage, record.run_id), within_s=AFTERWARDS_S)


def try_finalize(run: Run, record: LeaseRecord, reason: str) -> bool:
    """As `finalize`; while the batch system gives no answer, the lease stays on record as open."""
    try:
        finalize(run, record, reason)
    except SilentError as error:
        logger.warning("Lease %s is looked at again later: %s", record.lease_id, error.what)
        return False
    return True


def finalize_ended(site_name: str | None = None) -> list[str]:
    """Finalize open leases, of a site or of all, that have ended or have no owner; a line for each.

    Any number of processes may do so at once: the first one that records an end is believed.
    """
    done, known = [], []
    active = open_ledger().active_leases(site_name)
    run_ids = {record.run_id for record in active}
    rows = {row.run_id: row for row in open_ledger().runs_of(run_ids)}
    for record in active:
        try:
            known.append((record, run_of_record(rows[record.run_id])))
        except HeadraceError as error:
            if Path(record.folder).parent.is_dir():  # else it may be on another machine's disk
                _end_without_run(record, error)
                done.append(f"lease {record.lease_id}: closed: {error.what}")
    begun = {
        run.lease_folder(record.lease_id): run.site.limits.lost_after
        for record, run in known
        if _is_begun(run, record)
    }
    known_causes = readable(begun, lambda each: checked(each).get(JobView))
    states = sure_states({each: begun[each] for each, _ in known_causes})
    for record, run in known:
        folder = run.lease_folder(record.lease_id)
        state = states.get(folder, LeaseState.STARTING)
        why = _why_over(run, folder, state, has_ended=rows[run.run_id].state.is_final)
        if why and try_finalize(run, record, why):
            done.append(f"lease {record.lease_id}: closed ({LeaseFiles.read(folder).why_ended})")
    return done


def _is_begun(run: Run, record: LeaseRecord) -> bool:
    """Whether it was started, or should have been by now: its owner may be starting it."""
    is_late = time.time() - record.created_at >= run.site.limits.lost_after
    return is_there(run.lease_folder(record.lease_id).spec) or is_late


def _why_over(run: Run, folder: LeaseFolder, state: LeaseState, *, has_ended: bool) -> str:
    """Return why a lease is to be finalized; empty if it goes on, as for a resumed run."""
    if not state.is_active:
        return "ended by itself"
    if has_ended and open_ledger().run(run.run_id).state.is_final:
        return f"run {run.run_id} has ended"
    return _GONE if not is_there(folder.host) and owner_is_gone(run.request.owner) else ""


def _end_without_run(record: LeaseRecord, error: HeadraceError) -> None:
    lease_client.end(LeaseFolder(Path(record.folder)))
    record_machines(record)
    open_ledger().set_lease_state(
        record.lease_id, LeaseState.LOST, ended_at=time.time(), why_ended=error.what
    )
    inform(None, "accounting", partial(note_usage, record.run_id), within_s=AFTERWARDS_S)
