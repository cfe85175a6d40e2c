"""What the processes of a site know of a queue: its jobs, its limits, and who may submit.

All of it is one file, which is changed under a lock. The queue is asked once for all processes.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from headrace.batch.job_records import JobState, JobStatus
from headrace.batch.system import BatchSystem, Limit
from headrace.errors import BatchError
from headrace.files.atomic import read_record, write_if_possible, write_record
from headrace.files.sharing import private_folder_mode
from headrace.record import Record

logger = logging.getLogger(__name__)

_MOST_PATIENCE = 6
_FORGOTTEN_AFTER_S = 60.0
_UNUSED_AFTER_S = 60.0
_UNSETTLED_AFTER_S = 3600.0
_FIRST_LOOK_S = 0.1
_LONGEST_PAUSE_S = 5.0


class JobRecord(Record):
    """The job of a lease (`job.json`); written right after it was submitted."""

    job_id: str
    name: str
    queue: str = ""
    """Which queue it is in, where a site has several; empty for the machine's own."""
    submitted_at: float
    """When it was submitted or found, seconds since the epoch."""


class Slot(Record):
    """The slot of one job, from before its submit until the queue has told its end."""

    file: str
    """Where the job's record is, or will be."""
    job_id: str = ""
    """Id of the job; empty until it is recorded."""
    taken_at: float
    """When it was taken, seconds since the epoch."""


class KnownLimits(Record):
    """What the batch system told of its limits."""

    asked_at: float
    """When it was asked, seconds since the epoch."""
    limits: tuple[Limit, ...] = ()
    """What it told; empty also when it did not answer."""


class QueueState(Record):
    """What is known of a queue (`.queue/state.json` in the folder of leases)."""

    asked_at: float = 0.0
    """When the queue was asked for its jobs, seconds since the epoch."""
    num_failures: int = 0
    """Queries in a row that got no answer."""
    patience: float = 1.0
    """The next question comes after so many times the usual time."""
    jobs: dict[str, JobStatus] = {}
    """Jobs by id, as last told."""
    unbooked: dict[str, float] = {}
    """Jobs that the queue had forgotten and the books did not know, and when these were asked,
    seconds since the epoch."""
    taken: dict[str, Slot] = {}
    """Slots by the name of the job."""
    refused: str = ""
    """Why the batch system took no further job; empty when it took the last one."""
    refused_until: float = 0.0
    """No submit is tried before, seconds since the epoch."""
    num_refusals: int = 0
    """Refusals in a row; each makes the next wait longer."""
    limits: dict[str, KnownLimits] = {}
    """Limits by account and quality of service."""

    def still_taken(self, now: float) -> dict[str, Slot]:
        """Slots whose jobs have not ended, with the ids that have become known."""
        known = {name: _with_id(slot) for name, slot in self.taken.items()}
        return {name: slot for name, slot in known.items() if not self._is_free(slot, now)}

    def num_queued(self, taken: Iterable[Slot]) -> int:
        """How many of the slots belong to jobs that wait, or are not known to run."""
        known = [self.jobs.get(slot.job_id) for slot in taken]
        return sum(job is None or job.state is not JobState.RUNNING for job in known)

    def _is_free(self, slot: Slot, now: float) -> bool:
        if slot.job_id in self.jobs:
            return self.jobs[slot.job_id].state.is_final
        if slot.job_id:
            return False
        # whoever took it has died
        is_unsettled = intent_of(Path(slot.file)).exists()
        patience_s = _UNSETTLED_AFTER_S if is_unsettled else _UNUSED_AFTER_S
        return now - slot.taken_at > patience_s


def state_file(leases: Path, queue: str) -> Path:
    """Where the state of a queue is written down."""
    mark = f"-{hashlib.sha256(queue.encode()).hexdigest()[:8]}" if queue else ""
    return leases / ".queue" / f"state{mark}.json"


def read_state(file: Path) -> QueueState:
    """The state as it is; nothing is asked."""
    return read_record(file, QueueState) or QueueState()


def change_state(file: Path, change: Callable[[QueueState], QueueState | None]) -> None:
    """Change the state under its lock; a change that gives nothing leaves it as it is."""
    with locked(file):
        changed = change(read_state(file))
        if changed is not None:
            write_record(file, changed)


def patience_after(num_times: int) -> float:
    """How many times longer to wait for a queue that was silent, or refused jobs, that often."""
    return min(2.0**num_times, _MOST_PATIENCE) * random.uniform(1.0, 1.25)


def locked(file: Path, suffix: str = ".lock", timeout_s: float = -1) -> FileLock:
    """A lock beside a file of what is known of a queue, whose folder is made."""
    leases = file.parent.parent
    leases.mkdir(parents=True, exist_ok=True)
    mode = private_folder_mode(leases)
    file.parent.mkdir(exist_ok=True, mode=mode)
    return FileLock(file.with_suffix(suffix), timeout=timeout_s, mode=mode & 0o666)


def job_status(system: BatchSystem, leases: Path, job: JobRecord, poll_s: float) -> JobStatus:
    """How a job stands, from the state; the queue is asked when that is too old.

    A queue that does not answer is never taken for the end of a job.
    """
    return job_statuses(system, leases, [job], poll_s)[job.job_id]


def job_statuses(
    system: BatchSystem, leases: Path, jobs: Sequence[JobRecord], poll_s: float
) -> dict[str, JobStatus]:
    """How several jobs stand, by id; see `job_status`."""
    file = state_file(leases, system.queue)
    told = read_state(file).jobs
    if not all(job.job_id in told and told[job.job_id].state.is_final for job in jobs):
        renew(system, leases, poll_s)
        told = read_state(file).jobs
    unknown = {job.job_id: JobStatus(job_id=job.job_id, state=JobState.PENDING) for job in jobs}
    return unknown | {job_id: told[job_id] for job_id in unknown if job_id in told}


def renew(system: BatchSystem, leases: Path, poll_s: float) -> bool:
    """Ask the queue for all jobs of the site when its state is too old; gives whether it did.

    Each queue hears one question every `poll_s` seconds, however many processes there are. One
    that does not answer is asked less often, at moments that differ from site to site.
    """
    file = state_file(leases, system.queue)
    if not _is_due(read_state(file), poll_s):
        return False
    with suppress(Timeout), locked(file, ".asking", timeout_s=0):
        # somebody may have asked meanwhile; while a full disk keeps no state, everybody would ask
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
    pausing = {each for each, at in in_vain.items() if now - at < system.books_pause_s} - past
    try:
        told, asked = look_up(system, open_ids, pausing)
    except BatchError as error:
        logger.warning("%s; the queue is asked again later", error.what)
        failures = state.num_failures + 1
        patience = patience_after(failures)
        return {"asked_at": now, "num_failures": failures, "patience": patience}
    reason = f"{system.name} knows nothing of it any more"
    for job_id in past - told.keys():
        told[job_id] = JobStatus(job_id=job_id, state=JobState.UNKNOWN, reason=reason)
    return {
        "asked_at": now,
        "num_failures": 0,
        "patience": 1.0,
        "jobs": {**known, **{each: _since(known.get(each), told[each]) for each in told}},
        "unbooked": {**in_vain, **{each: now for each in asked if each not in told}},
    }


def _since(before: JobStatus | None, seen: JobStatus) -> JobStatus:
    """Add since when a job has been seen to run, by this clock: that of the queue may differ."""
    if seen.state is not JobState.RUNNING:
        return seen
    since = before.running_since if before is not None else None
    return seen.model_copy(update={"running_since": since or seen.seen_at})


def _watched(leases: Path, queue: str, state: QueueState) -> dict[str, JobRecord]:
    """Jobs by id: those with a slot, and those of leases that are not recorded as ended."""
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
    """The file that is there while a job may have been submitted whose id nobody knows."""
    return file.with_suffix(".submitting")


def look(system: BatchSystem, job: JobRecord) -> JobStatus:
    """How a job stands, asked at once."""
    told, _ = look_up(system, [job.job_id])
    unknown = JobStatus(job_id=job.job_id, state=JobState.UNKNOWN, reason="nothing is known")
    return told.get(job.job_id, unknown)


def final_status(
    system: BatchSystem, job: JobRecord, timeout_s: float, *, or_never: bool = False
) -> JobStatus | None:
    """How a job ended, or with `or_never` that it never starts; None when it has not in time."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_LOOK_S
    while True:
        found = look(system, job)
        if found.state.is_final or (or_never and found.never_starts):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def look_up(
    system: BatchSystem, job_ids: Sequence[str], not_in_books: Collection[str] = ()
) -> tuple[dict[str, JobStatus], list[str]]:
    """What is known of jobs, by id, asked at once; and for which ones the books were asked."""
    told = system.poll(job_ids)
    forgotten = [each for each in job_ids if each not in told and each not in not_in_books]
    if forgotten:
        with suppress(BatchError):  # there may be no books: then nothing is known
            books = system.accounting(forgotten).items()
            from_books = {"is_from_books": True}
            told |= {job_id: each.model_copy(update=from_books) for job_id, each in books}
    return told, forgotten
