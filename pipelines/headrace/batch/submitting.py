"""A job, from the one submit of it to its end; answers may be lost, and submitters may die."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.batch.jobs import JobSpec, JobState, JobStatus
from headrace.batch.system import BatchSystem
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError, SubmitLimitError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.record import Record

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE_S = 2.0
_FIRST_LOOK_S = 0.1
_LONGEST_PAUSE_S = 5.0


class JobRecord(Record):
    """The job of a lease (`job.json`); written right after it was submitted."""

    job_id: str
    """Id of the job."""
    name: str
    """Name of the job."""
    queue: str = ""
    """Which queue it is in, where a site has several; empty for the machine's own."""
    submitted_at: float
    """When it was submitted or found, seconds since the epoch."""


def submit_once(
    system: BatchSystem,
    spec: JobSpec,
    file: Path,
    wait_for_token: Callable[[], None],
    pause_s: float = _PAUSE_S,
) -> JobRecord:
    """Submit a job, unless it has been submitted already; the caller holds the lease's lock.

    What may be there after a lost answer, or after a submitter that died, is looked up by name
    before anything is submitted again.

    Args:
        system: The batch system.
        spec: The job; its name is unique.
        file: The job's record.
        wait_for_token: Called before each submit; returns when one is allowed, or raises.
        pause_s: Pause after the first unclear answer, doubled each time, seconds.

    Raises:
        JobRefusedError: The batch system refuses the job.
        SubmitLimitError: It refuses the job until others have ended.
        BatchError: No clear answer and no such job, several times.
    """
    for attempt in range(_ATTEMPTS):
        record = recovered(system, spec.name, file)
        if record is not None:
            return record
        wait_for_token()
        write_text(intent_of(file), spec.name)
        try:
            return _recorded(system, system.submit(spec), spec.name, file)
        except (JobRefusedError, SubmitLimitError):
            intent_of(file).unlink()
            raise
        except AmbiguousSubmitError as error:
            logger.warning("%s; looking for the job by its name", error.what)
            time.sleep(pause_s * 2**attempt * random.uniform(0.75, 1.25))
    record = recovered(system, spec.name, file)
    if record is None:
        raise BatchError(f"{system.name} took no job {spec.name} in {_ATTEMPTS} attempts")
    return record


def recovered(system: BatchSystem, name: str, file: Path) -> JobRecord | None:
    """Record the job of a submitter that died before it could; nothing is submitted.

    Returns:
        The job; None when there is none.

    Raises:
        BatchError: The batch system does not answer.
    """
    known = read_record(file, JobRecord)
    if known is not None or not intent_of(file).exists():
        return known
    found = system.find(name)
    return _recorded(system, found[-1].job_id, name, file) if found else None


def intent_of(file: Path) -> Path:
    """The file that is there while a job may have been submitted whose id nobody knows."""
    return file.with_suffix(".submitting")


def look(system: BatchSystem, job: JobRecord) -> JobStatus:
    """How a job stands, asked at once.

    Raises:
        BatchError: The batch system does not answer.
    """
    told, _ = look_up(system, [job.job_id])
    unknown = JobStatus(job_id=job.job_id, state=JobState.UNKNOWN, reason="nothing is known")
    return told.get(job.job_id, unknown)


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
    """How jobs stand, asked at once.

    Returns:
        Jobs by id, those of which something is known, and for which ones the books were asked.
    """
    told = system.poll(job_ids)
    forgotten = [each for each in job_ids if each not in told and each not in not_in_books]
    if forgotten:
        with suppress(BatchError):  # there may be no books: then nothing is known
            books = system.accounting(forgotten).items()
            from_books = {"is_from_books": True}
            told |= {job_id: each.model_copy(update=from_books) for job_id, each in books}
    return told, forgotten


def _recorded(system: BatchSystem, job_id: str, name: str, file: Path) -> JobRecord:
    record = JobRecord(job_id=job_id, name=name, queue=system.queue, submitted_at=time.time())
    write_record(file, record)
    intent_of(file).unlink()
    return record
