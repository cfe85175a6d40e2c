"""Submitting a job exactly once, also when the answer is lost or the submitter dies."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from headrace.batch.jobs import JobSpec
from headrace.batch.system import BatchSystem
from headrace.errors import AmbiguousSubmitError, BatchError, JobRefusedError, SubmitLimitError
from headrace.record import Record
from headrace.storage.atomic import read_record, write_record, write_text

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE_S = 2.0


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
    known = read_record(file, JobRecord)
    if known is not None:
        return known
    intent = intent_of(file)
    for attempt in range(_ATTEMPTS):
        record = _look_up(system, spec.name) if intent.exists() else None
        if record is not None:
            break
        wait_for_token()
        write_text(intent, spec.name)
        try:
            record = _record(system, system.submit(spec), spec.name)
            break
        except (JobRefusedError, SubmitLimitError):
            intent.unlink()
            raise
        except AmbiguousSubmitError as error:
            logger.warning("%s; looking for the job by its name", error.what)
            time.sleep(pause_s * 2**attempt * random.uniform(0.75, 1.25))
    record = record or _look_up(system, spec.name)
    if record is None:
        raise BatchError(f"{system.name} took no job {spec.name} in {_ATTEMPTS} attempts")
    write_record(file, record)
    intent.unlink()
    return record


def recovered(system: BatchSystem, name: str, file: Path) -> JobRecord | None:
    """Record the job of a submitter that died before it could; nothing is submitted.

    Args:
        system: The batch system.
        name: Name of the job.
        file: The job's record.

    Returns:
        The job; None when there is none.

    Raises:
        BatchError: The batch system does not answer.
    """
    known = read_record(file, JobRecord)
    if known is not None or not intent_of(file).exists():
        return known
    record = _look_up(system, name)
    if record is not None:
        write_record(file, record)
        intent_of(file).unlink()
    return record


def intent_of(file: Path) -> Path:
    """The file that is there while a job may have been submitted whose id nobody knows."""
    return file.with_suffix(".submitting")


def _look_up(system: BatchSystem, name: str) -> JobRecord | None:
    found = system.find(name)
    return _record(system, found[-1].job_id, name) if found else None


def _record(system: BatchSystem, job_id: str, name: str) -> JobRecord:
    return JobRecord(job_id=job_id, name=name, queue=system.queue, submitted_at=time.time())
