"""What the queue says of all jobs of a site, asked once for all and kept in one file."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import Field

from headrace.batch.jobs import JobState, JobStatus
from headrace.batch.slots import jobs_with_slots, mark_of, slots_file
from headrace.batch.submitting import JobRecord
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
from headrace.record import Record
from headrace.storage.atomic import read_record, write_if_room

logger = logging.getLogger(__name__)

_MOST_PATIENCE = 6
_FORGOTTEN_AFTER_S = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class QueueSnapshot(Record):
    """The answers of the last query."""

    asked_at: float = 0.0
    """When the queue was asked, seconds since the epoch."""
    num_failures: int = Field(default=0, ge=0)
    """Queries in a row that got no answer."""
    patience: float = 1.0
    """The next question comes after so many times the usual time."""
    jobs: dict[str, JobStatus] = {}
    """Jobs by id, as last told."""
    unbooked: dict[str, float] = {}
    """Jobs that the queue had forgotten and the books did not know, and when these were asked,
    seconds since the epoch."""


def job_status(system: BatchSystem, leases: Path, job: JobRecord, poll_s: float) -> JobStatus:
    """How a job stands, from the board; the queue is asked when the board is too old.

    A queue that does not answer is never taken for the end of a job.

    Args:
        system: The batch system.
        leases: Folder of all leases of the site.
        job: The job.
        poll_s: Seconds between two questions.
    """
    return job_statuses(system, leases, [job], poll_s)[job.job_id]


def job_statuses(
    system: BatchSystem, leases: Path, jobs: Sequence[JobRecord], poll_s: float
) -> dict[str, JobStatus]:
    """How several jobs stand, by id; see `job_status`."""
    if not jobs:
        return {}
    told = read(system, leases).jobs
    if not all(job.job_id in told and told[job.job_id].state.is_final for job in jobs):
        renew(system, leases, poll_s)
        told = read(system, leases).jobs
    unknown = {job.job_id: JobStatus(job_id=job.job_id, state=JobState.PENDING) for job in jobs}
    return unknown | {job_id: told[job_id] for job_id in unknown if job_id in told}


def read(system: BatchSystem, leases: Path) -> QueueSnapshot:
    """The board as it is; nothing is asked.

    Args:
        system: The batch system.
        leases: Folder of all leases of the site.
    """
    return read_record(_file(system, leases), QueueSnapshot) or QueueSnapshot()


def renew(system: BatchSystem, leases: Path, poll_s: float) -> bool:
    """Ask the queue for all jobs of the site, when the board is too old.

    The board is shared by all processes that look at the site, so each queue hears one question
    every `poll_s` seconds. One that does not answer is asked less often, at moments that differ
    from site to site.

    Args:
        system: The batch system.
        leases: Folder of all leases of the site.
        poll_s: Seconds between two questions.

    Returns:
        Whether it was asked, by this call.
    """
    file = _file(system, leases)
    if not _is_due(read(system, leases), poll_s):
        return False
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(Timeout), FileLock(file.with_suffix(".lock"), timeout=0, mode=0o600):
        board = read(system, leases)  # somebody may have asked meanwhile
        claimed = board.model_copy(update={"asked_at": time.time()})
        # while a full disk keeps no board, everybody would ask at every look
        if _is_due(board, poll_s) and write_if_room(file, claimed):
            write_if_room(file, _ask(system, leases, board))
            return True
    return False


def final_status(
    system: BatchSystem, job: JobRecord, timeout_s: float, *, or_never: bool = False
) -> JobStatus | None:
    """How a job ended, asked at once; waits for one that is just ending.

    Args:
        system: The batch system.
        job: The job.
        timeout_s: Longest wait.
        or_never: A job that can never start counts as ended, although it is in the queue.

    Returns:
        None when it has not ended in time.

    Raises:
        BatchError: The batch system does not answer.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        found = look(system, job)
        if found.state.is_final or (or_never and found.never_starts):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _file(system: BatchSystem, leases: Path) -> Path:
    return leases / ".queue" / f"board{mark_of(system.queue)}.json"


def look(system: BatchSystem, job: JobRecord) -> JobStatus:
    """How a job stands, asked at once.

    Raises:
        BatchError: The batch system does not answer.
    """
    return _look(system, [job.job_id])[0].get(job.job_id) or _nothing(job)


def _nothing(job: JobRecord) -> JobStatus:
    return JobStatus(job_id=job.job_id, state=JobState.UNKNOWN, reason="nothing is known")


def _is_due(board: QueueSnapshot, poll_s: float) -> bool:
    return time.time() - board.asked_at >= poll_s * board.patience


def _ask(system: BatchSystem, leases: Path, board: QueueSnapshot) -> QueueSnapshot:
    now = time.time()
    records = _watched(leases, system.queue)
    ended = {job_id: each for job_id, each in board.jobs.items() if each.state.is_final}
    open_ids = [job_id for job_id in records if job_id not in ended]
    in_vain = {job_id: at for job_id, at in board.unbooked.items() if job_id in open_ids}
    pause_s = system.books_pause_s
    recent = {job_id for job_id, at in in_vain.items() if now - at < pause_s}
    pausing = [job_id for job_id in recent if not _is_past(records[job_id], now)]
    try:
        told, asked = _look(system, open_ids, pausing)
    except BatchError as error:
        logger.warning("%s; the queue is asked again later", error.what)
        failures = board.num_failures + 1
        patience = min(2**failures, _MOST_PATIENCE) * random.uniform(1.0, 1.25)
        changes = {"asked_at": now, "num_failures": failures, "patience": patience}
        return board.model_copy(update=changes)
    for job_id in open_ids:
        if job_id not in told and _is_past(records[job_id], now):
            reason = f"{system.name} knows nothing of it any more"
            told[job_id] = JobStatus(job_id=job_id, state=JobState.UNKNOWN, reason=reason)
    known = {job_id: each for job_id, each in board.jobs.items() if job_id in records}
    unbooked = {**in_vain, **{job_id: now for job_id in asked if job_id not in told}}
    jobs = {**known, **{each: _since(board, told[each]) for each in told}}
    return QueueSnapshot(asked_at=now, jobs=jobs, unbooked=unbooked)


def _is_past(job: JobRecord, now: float) -> bool:
    """Whether nothing more is to come of a job that neither the queue nor the books know."""
    return now - job.submitted_at > _FORGOTTEN_AFTER_S


def _since(board: QueueSnapshot, seen: JobStatus) -> JobStatus:
    """Add since when a job has been seen to run, by this clock: that of the queue may differ."""
    if seen.state is not JobState.RUNNING:
        return seen
    before = board.jobs.get(seen.job_id)
    since = before.running_since if before is not None else None
    return seen.model_copy(update={"running_since": since or seen.seen_at})


def _look(
    system: BatchSystem, job_ids: Sequence[str], not_in_books: Collection[str] = ()
) -> tuple[dict[str, JobStatus], list[str]]:
    """Jobs by id, those of which something is known, and for which ones the books were asked."""
    told = system.poll(job_ids)
    forgotten = [each for each in job_ids if each not in told and each not in not_in_books]
    if forgotten:
        with suppress(BatchError):  # there may be no books: then nothing is known
            books = system.accounting(forgotten).items()
            from_books = {"is_from_books": True}
            told |= {job_id: each.model_copy(update=from_books) for job_id, each in books}
    return told, forgotten


def _watched(leases: Path, queue: str) -> dict[str, JobRecord]:
    """Jobs by id: those of leases that are not recorded as ended, and those with a slot."""
    files = [*leases.glob("*/job.json"), *leases.glob("*/jobs/*.json")]
    ended = {each.parent for each in leases.glob("*/closed")}
    files = [each for each in files if ended.isdisjoint(each.parents)]
    found = [read_record(each, JobRecord) for each in sorted(files)]
    held = [each for each in found if each is not None and each.queue == queue]
    return {each.job_id: each for each in (*jobs_with_slots(slots_file(leases, queue)), *held)}
