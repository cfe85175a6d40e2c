"""Who has a slot in a queue whose jobs are counted; one file for all processes of a site."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.batch.jobs import JobState, JobStatus
from headrace.batch.submitting import JobRecord, intent_of
from headrace.record import Record
from headrace.storage.atomic import read_record

_UNUSED_AFTER_S = 60.0
_UNSETTLED_AFTER_S = 3600.0


class Slot(Record):
    """The slot of one job, from before its submit until the queue has told its end."""

    file: str
    """Where the job's record is, or will be."""
    job_id: str = ""
    """Id of the job; empty until it is recorded."""
    taken_at: float
    """When it was taken, seconds since the epoch."""


class Slots(Record):
    """All slots that are taken, and whether the batch system refuses more."""

    taken: dict[str, Slot] = {}
    """Slots by the name of the job."""
    refused: str = ""
    """Why the batch system took no further job; empty when it took the last one."""
    refused_until: float = 0.0
    """No submit is tried before, seconds since the epoch."""
    num_refusals: int = 0
    """Refusals in a row; each makes the next wait longer."""


def slots_file(leases: Path, queue: str) -> Path:
    """Where the slots of a queue are written down.

    Args:
        leases: Folder of all leases of the site.
        queue: Which queue, where a site has several.
    """
    return leases / ".queue" / f"places{mark_of(queue)}.json"


def mark_of(queue: str) -> str:
    """What tells the files of a queue from those of the site's other ones."""
    return f"-{hashlib.sha256(queue.encode()).hexdigest()[:8]}" if queue else ""


def jobs_with_slots(file: Path) -> list[JobRecord]:
    """The jobs that have slots, also of leases that were closed."""
    slots = read_record(file, Slots) or Slots()
    return [
        JobRecord(job_id=slot.job_id, name=name, submitted_at=slot.taken_at)
        for name, slot in slots.taken.items()
        if slot.job_id
    ]


def still_taken(slots: Slots, jobs: Mapping[str, JobStatus], now: float) -> dict[str, Slot]:
    """Slots whose jobs have not ended, with the ids that have become known.

    Args:
        slots: All slots.
        jobs: What the queue has told, by id.
        now: Seconds since the epoch.
    """
    kept = {}
    for name, slot in slots.taken.items():
        known = slot if slot.job_id else _with_id(slot)
        status = jobs.get(known.job_id)
        if not (status.state.is_final if status else _is_left(known, now)):
            kept[name] = known
    return kept


def num_queued(taken: Mapping[str, Slot], jobs: Mapping[str, JobStatus]) -> int:
    """How many of the slots belong to jobs that wait, or are not known to run."""
    running = [
        slot
        for slot in taken.values()
        if slot.job_id in jobs and jobs[slot.job_id].state is JobState.RUNNING
    ]
    return len(taken) - len(running)


def _with_id(slot: Slot) -> Slot:
    record = read_record(Path(slot.file), JobRecord)
    return slot if record is None else slot.model_copy(update={"job_id": record.job_id})


def _is_left(slot: Slot, now: float) -> bool:
    """Whether a slot has no job and will get none: whoever took it has died."""
    if slot.job_id:
        return False
    patience_s = _UNSETTLED_AFTER_S if intent_of(Path(slot.file)).exists() else _UNUSED_AFTER_S
    return now - slot.taken_at > patience_s


def taken_now(file: Path) -> Slot:
    """A slot for the job whose record will be in that file."""
    return Slot(file=str(file), taken_at=time.time())
