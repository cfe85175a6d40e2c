"""Shared state of a queue on a site: its jobs, its limits, and who may submit.

All state is in one file, which is changed under a lock. One query serves all processes.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.batch.job_records import JobState, JobStatus
from headrace.batch.system import BatchSystem, Limit
from headrace.errors import BatchError
from headrace.files.atomic import read_record, write_if_possible
from headrace.files.sharing import private_folder_mode
from headrace.record import Record

logger = logging.getLogger(__name__)

_MOST_PATIENCE = 6
_FORGOTTEN_AFTER_S = 60.0
_UNUSED_AFTER_S = 60.0
_UNCLEAR_AFTER_S = 3600.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class JobRecord(Record):
    """The job of a lease (`job.json`); written directly after its submission."""

    job_id: str
    name: str
    queue: str = ""
    """Its queue, if a site has several; empty for the machine's own."""
    submitted_at: float
    """When it was submitted or found, seconds since the epoch."""


class Slot(Record):
    """Slot of one job, from before its submission until the queue has reported its end."""

    file: str
    """Path of the job's record, which may not exist yet."""
    job_id: str = ""
    """Id of the job; empty until it is recorded."""
    taken_at: float
    """When it was taken, seconds since the epoch."""


class KnownLimits(Record):
    """Limits that the batch system has reported."""

    asked_at: float
    """When it was asked, seconds since the epoch."""
    limits: tuple[Limit, ...] = ()
    """Reported limits; also empty if it did not answer."""


class QueueState(Record):
    """State of a queue (`.queue/state.json` in the folder of leases)."""

    asked_at: float = 0.0
    """When the queue was asked for its jobs, seconds since the epoch."""
    num_failures: int = 0
    """Number of failed queries in a row."""
    patience: float = 1.0
    """Factor on the usual time until the next query."""
    jobs: dict[str, JobStatus] = {}
    """Jobs by id, as last reported."""
    unbooked: dict[str, float] = {}
    """Jobs that neither the queue nor the accounting knows, with the time at which the accounting
    was asked, seconds since the epoch."""
    taken: dict[str, Slot] = {}
    """Slots by name of the job."""
    refused: str = ""
    """Why the batch system refused the last job; empty if it accepted it."""
    refused_until: float = 0.0
    """Time before which nothing is submitted, seconds since the epoch."""
    num_refusals: int = 0
    """Number of refusals in a row; each makes the next wait longer."""
    limits: dict[str, KnownLimits] = {}
    """Limits by account and quality of service."""

    def still_taken(self, now: float) -> dict[str, Slot]:
        """Return the slots whose jobs have not ended, with the ids that are known now."""
        known = {name: _with_id(slot) for name, slot in self.taken.items()}
        return {name: slot for name, slot in known.items() if not self._is_free(slot, now)}

    def num_queued(self, taken: Iterable[Slot]) -> int:
        """Return how many of the slots have jobs that wait, or are not known to run."""
        known = [self.jobs.get(slot.job_id) for slot in taken]
        return sum(job is None or job.state is not JobState.RUNNING for job in known)

    def _is_free(self, slot: Slot, now: float) -> bool:
        if slot.job_id in self.jobs:
            return self.jobs[slot.job_id].state.is_final
        if slot.job_id:
            return False
        # its process has died
        is_submitting = intent_of(Path(slot.file)).exists()
        patience_s = _UNCLEAR_AFTER_S if is_submitting else _UNUSED_AFTER_S
        return now - slot.taken_at > patience_s


def state_file(leases: Path, queue: str) -> Path:
    """Return the path of a queue's state."""
    mark = f"-{hashlib.sha256(queue.encode()).hexdigest()[:8]}" if queue else ""
    return leases / ".queue" / f"state{mark}.json"


def read_state(file: Path) -> QueueState:
    """Return the state as recorded; no query is made."""
    return read_record(file, QueueState) or QueueState()


def patience_after(num_times: int) -> float:
    """Return the factor on the wait for a queue that failed or refused `num_times` in a row."""
    return min(2.0**num_times, _MOST_PATIENCE) * random.uniform(1.0, 1.25)


def locked(file: Path, suffix: str = ".lock", timeout_s: float = -1) -> FileLock:
    """Return the lock beside a queue's file; make the file's folder."""
    leases = file.parent.parent
    leases.mkdir(parents=True, exist_ok=True)
    mode = private_folder_mode(leases)
    file.parent.mkdir(exist_ok=True, mode=mode)
    return FileLock(file.with_suffix(suffix), timeout=timeout_s, mode=mode & 0o666)


def job_status(system: BatchSystem, leases: Path, job: JobRecord, poll_s: float) -> JobStatus:
    """Return a job's state, renewed if too old; a queue that does not answer ends no job."""
    return job_statuses(system, leases, [job], poll_s)[job.job_id]


def job_statuses(
    system: BatchSystem, leases: Path, jobs: Sequence[JobRecord], poll_s: float
) -> dict[str, JobStatus]:
    """Return the states of several jobs by id; see `job_status`."""
    file = state_file(leases, system.queue)
    known = read_state(file).jobs
    if not all(job.job_id in known and known[job.job_id].state.is_final for job in jobs):
        renew(system, leases, poll_s)
        known = read_state(file).jobs
    unknown = {job.job_id: JobStatus(job_id=job.job_id, state=JobState.PENDING) for job in jobs}
    return unknown | {job_id: known[job_id] for job_id in unknown if job_id in known}


def renew(system: BatchSystem, leases: Path, poll_s: float) -> bool:
    """Ask the queue for all jobs of the site if its state is too old; return whether it was asked.

    A queue gets one query every `poll_s` seconds from all processes together. A queue that does
    not answer is asked less often, at random intervals.
    """
    file = state_file(leases, system.queue)
    if not _is_due(read_state(file), poll_s):
        return False
    with suppress(Timeout), locked(file, ".asking", timeout_s=0):
        # another process may have asked; if a full disk keeps no state, all processes would ask
        if _is_due(read_state(file), poll_s) and _update(file, {"asked_at": time.time()}):
            _update(file, _ask(system, leases, read_state(file)))
            return True
    return False


def _update(file: Path, changes: dict[str, object]) -> bool:
    with locked(file, ".lock"):
        return write_if_possible(file, read_state(file).model_copy(update=changes))


def _is_due(state: QueueState, poll_s: float) -> bool:
    return time.time() - state.asked_at >= poll_s * state.patience


def _ask(system: BatchSystem, leases: Path, state: QueueState) -> dict[str, object]:
    now = time.time()
    records = _watched(leases, system.queue, state)
    known = {job_id: each for job_id, each in state.jobs.items() if job_id in records}
    open_ids = [each for each in records if each not in known or not known[each].state.is_final]
    in_vain = {job_id: at for job_id, at in state.unbooked.items() if job_id in open_ids}
    past = {each for each in open_ids if now - records[each].submitted_at > _FORGOTTEN_AFTER_S}
    pausing = {each for each, at in in_vain.items() if now - at < system.accounting_pause_s}
    try:
        found, asked = look_up(system, open_ids, pausing)
    except BatchError as error:
        logger.warning("%s; the queue is asked again later", error.what)
        failures = state.num_failures + 1
        patience = patience_after(failures)
        return {"asked_at": now, "num_failures": failures, "patience": patience}
    reason = f"{system.name} knows nothing of it any more"
    # an accounting may be late: two queries must lack the job
    for job_id in past & in_vain.keys() & set(asked) - found.keys():
        found[job_id] = JobStatus(job_id=job_id, state=JobState.UNKNOWN, reason=reason)
    return {
        "asked_at": now,
        "num_failures": 0,
        "patience": 1.0,
        "jobs": {**known, **{each: _since(known.get(each), found[each]) for each in found}},
        "unbooked": {**in_vain, **{each: now for each in asked if each not in found}},
    }


def _since(before: JobStatus | None, found: JobStatus) -> JobStatus:
    """Add when a job was first observed running, by this clock: that of the queue may differ."""
    if found.state is not JobState.RUNNING:
        return found
    since = before.running_since if before is not None else None
    return found.model_copy(update={"running_since": since or found.seen_at})


def _watched(leases: Path, queue: str, state: QueueState) -> dict[str, JobRecord]:
    """Return jobs by id: those with a slot, and those of leases not recorded as ended."""
    found = {
        slot.job_id: JobRecord(job_id=slot.job_id, name=name, submitted_at=slot.taken_at)
        for name, slot in state.taken.items()
        if slot.job_id
    }
    ended = {each.parent for each in leases.glob("*/closed")}
    for file in sorted((*leases.glob("*/job.json"), *leases.glob("*/jobs/*.json"))):
        record = read_record(file, JobRecord) if ended.isdisjoint(file.parents) else None
        if record is not None and record.queue == queue:
            found[record.job_id] = record
    return found


def _with_id(slot: Slot) -> Slot:
    record = None if slot.job_id else read_record(Path(slot.file), JobRecord)
    return slot if record is None else slot.model_copy(update={"job_id": record.job_id})


def intent_of(file: Path) -> Path:
    """Return the file that exists while a job may have been submitted without a recorded id."""
    return file.with_suffix(".submitting")


def current_status(system: BatchSystem, job: JobRecord) -> JobStatus:
    """Return a job's state; the batch system is asked at once."""
    found, _ = look_up(system, [job.job_id])
    unknown = JobStatus(job_id=job.job_id, state=JobState.UNKNOWN, reason="nothing is known")
    return found.get(job.job_id, unknown)


def final_status(system: BatchSystem, job: JobRecord, timeout_s: float) -> JobStatus | None:
    """Return how a job ended, or that it never starts; None after `timeout_s`.

    A job that has left the queue may be missing in the accounting for `accounting_pause_s`.
    """
    began, pause_s = time.monotonic(), _FIRST_PAUSE_S
    while True:
        found = current_status(system, job)
        passed_s = time.monotonic() - began
        is_late = found.state is JobState.UNKNOWN and passed_s < system.accounting_pause_s
        if found.never_starts or (found.state.is_final and not is_late):
            return found
        if passed_s > timeout_s and not is_late:
            return None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def look_up(
    system: BatchSystem, job_ids: Sequence[str], not_in_accounting: Collection[str] = ()
) -> tuple[dict[str, JobStatus], list[str]]:
    """Ask for jobs at once; return states by id, and the ids that the accounting was asked for."""
    found = system.poll(job_ids)
    forgotten = [each for each in job_ids if each not in found and each not in not_in_accounting]
    if forgotten:
        with suppress(BatchError):  # without an accounting they are unknown
            ended = system.accounting(forgotten).items()
            final = {"is_from_books": True}
            found |= {job_id: each.model_copy(update=final) for job_id, each in ended}
    return found, forgotten
