"""What the queue says of all jobs of a site, asked once for all and kept in one file."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import Field

from headrace.errors import BatchError
from headrace.leases.batch.jobs import JobSight, JobState
from headrace.leases.batch.submitting import JobRecord
from headrace.leases.batch.system import BatchSystem
from headrace.leases.records import Record
from headrace.storage.atomic import read_record, write_record

logger = logging.getLogger(__name__)

_MOST_PATIENCE = 6
_FORGOTTEN_AFTER_S = 60.0


class Board(Record):
    """The answers of the last query."""

    asked_at: float = 0.0
    """When the queue was asked, seconds since the epoch."""
    num_failures: int = Field(default=0, ge=0)
    """Queries in a row that got no answer; each makes the next wait longer."""
    jobs: dict[str, JobSight] = {}
    """Jobs by id, as last told."""


def sight(system: BatchSystem, leases: Path, job: JobRecord, poll_s: float) -> JobSight:
    """How a job stands, from the board; the queue is asked when the board is too old.

    The board is shared by all processes that look at the site, so each queue hears one question
    every `poll_s` seconds, for all jobs. A queue that does not answer is asked less often, and
    never taken for the end of a job.

    Args:
        system: The batch system.
        leases: Folder of all leases of the site.
        job: The job.
        poll_s: Seconds between two questions.
    """
    file = leases / ".queue" / f"board{_mark(system.queue)}.json"
    board = read_record(file, Board) or Board()
    if _is_due(board, job, poll_s):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(Timeout), FileLock(file.with_suffix(".lock"), timeout=0, mode=0o600):
            board = read_record(file, Board) or Board()  # somebody may have asked meanwhile
            if _is_due(board, job, poll_s):
                board = _ask(system, leases, board)
                write_record(file, board)
    return board.jobs.get(job.job_id) or JobSight(job_id=job.job_id, state=JobState.PENDING)


def final_sight(
    system: BatchSystem, job: JobRecord, timeout_s: float, *, or_never: bool = False
) -> JobSight | None:
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
    while True:
        found = _look(system, [job.job_id]).get(job.job_id)
        if found is None:
            return JobSight(job_id=job.job_id, state=JobState.UNKNOWN, reason="nothing is known")
        if found.state.is_final or (or_never and found.never_starts):
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(1.0)


def _mark(queue: str) -> str:
    return f"-{hashlib.sha256(queue.encode()).hexdigest()[:8]}" if queue else ""


def _is_due(board: Board, job: JobRecord, poll_s: float) -> bool:
    known = board.jobs.get(job.job_id)
    if known is not None and known.state.is_final:
        return False
    patience = min(2**board.num_failures, _MOST_PATIENCE)
    return bool(time.time() - board.asked_at >= poll_s * patience)


def _ask(system: BatchSystem, leases: Path, board: Board) -> Board:
    now = time.time()
    records = [each for each in _open_jobs(leases) if each.queue == system.queue]
    try:
        told = _look(system, [each.job_id for each in records])
    except BatchError as error:
        logger.warning("%s; the queue is asked again later", error.what)
        return board.model_copy(update={"asked_at": now, "num_failures": board.num_failures + 1})
    for record in records:
        if record.job_id not in told and now - record.submitted_at > _FORGOTTEN_AFTER_S:
            reason = f"{system.name} knows nothing of it any more"
            told[record.job_id] = JobSight(
                job_id=record.job_id, state=JobState.UNKNOWN, reason=reason
            )
    return Board(asked_at=now, jobs=told)


def _look(system: BatchSystem, job_ids: Sequence[str]) -> dict[str, JobSight]:
    told = system.poll(job_ids)
    forgotten = [job_id for job_id in job_ids if job_id not in told]
    if forgotten:
        with suppress(BatchError):  # there may be no books: then nothing is known
            told = {**told, **system.accounting(forgotten)}
    return told


def _open_jobs(leases: Path) -> list[JobRecord]:
    """Jobs of leases that have not been recorded as ended."""
    files = [each for each in leases.glob("*/job.json") if not (each.parent / "closed").exists()]
    found = [read_record(each, JobRecord) for each in sorted(files)]
    return [each for each in found if each is not None]
