"""Who has a place in a queue whose jobs are counted; one file for all processes of a site."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.batch.jobs import JobSight, JobState
from headrace.batch.submitting import JobRecord, intent_of
from headrace.record import Record
from headrace.storage.atomic import read_record

_UNUSED_AFTER_S = 60.0
_UNSETTLED_AFTER_S = 3600.0


class Place(Record):
    """The place of one job, from before its submit until the queue has told its end."""

    file: str
    """Where the job's record is, or will be."""
    job_id: str = ""
    """Id of the job; empty until it is recorded."""
    taken_at: float
    """When it was taken, seconds since the epoch."""


class Places(Record):
    """All places that are taken, and whether the batch system refuses more."""

    taken: dict[str, Place] = {}
    """Places by the name of the job."""
    refused: str = ""
    """Why the batch system took no further job; empty when it took the last one."""
    refused_until: float = 0.0
    """No submit is tried before, seconds since the epoch."""
    num_refusals: int = 0
    """Refusals in a row; each makes the next wait longer."""


def places_file(leases: Path, queue: str) -> Path:
    """Where the places of a queue are written down.

    Args:
        leases: Folder of all leases of the site.
        queue: Which queue, where a site has several.
    """
    return leases / ".queue" / f"places{mark_of(queue)}.json"


def mark_of(queue: str) -> str:
    """What tells the files of a queue from those of the site's other ones."""
    return f"-{hashlib.sha256(queue.encode()).hexdigest()[:8]}" if queue else ""


def jobs_with_places(file: Path) -> list[JobRecord]:
    """The jobs that have places, also of leases that were closed."""
    places = read_record(file, Places) or Places()
    return [
        JobRecord(job_id=place.job_id, name=name, submitted_at=place.taken_at)
        for name, place in places.taken.items()
        if place.job_id
    ]


def still_taken(places: Places, jobs: Mapping[str, JobSight], now: float) -> dict[str, Place]:
    """Places whose jobs have not ended, with the ids that have become known.

    Args:
        places: All places.
        jobs: What the queue has told, by id.
        now: Seconds since the epoch.
    """
    kept = {}
    for name, place in places.taken.items():
        known = place if place.job_id else _with_id(place)
        sight = jobs.get(known.job_id)
        if not (sight.state.is_final if sight else _is_left(known, now)):
            kept[name] = known
    return kept


def num_queued(taken: Mapping[str, Place], jobs: Mapping[str, JobSight]) -> int:
    """How many of the places belong to jobs that wait, or are not known to run."""
    running = [
        place
        for place in taken.values()
        if place.job_id in jobs and jobs[place.job_id].state is JobState.RUNNING
    ]
    return len(taken) - len(running)


def _with_id(place: Place) -> Place:
    record = read_record(Path(place.file), JobRecord)
    return place if record is None else place.model_copy(update={"job_id": record.job_id})


def _is_left(place: Place, now: float) -> bool:
    """Whether a place has no job and will get none: whoever took it has died."""
    if place.job_id:
        return False
    patience_s = _UNSETTLED_AFTER_S if intent_of(Path(place.file)).exists() else _UNUSED_AFTER_S
    return now - place.taken_at > patience_s


def taken_now(file: Path) -> Place:
    """A place for the job whose record will be in that file."""
    return Place(file=str(file), taken_at=time.time())
