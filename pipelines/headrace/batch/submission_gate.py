"""The one way into a queue: few submits a minute, and no more jobs than the limits allow."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

from filelock import FileLock

from headrace.batch import queue_snapshot
from headrace.batch.jobs import JobSpec
from headrace.batch.limits import Limit, first_reached, limits_of_site
from headrace.batch.slots import (
    Slots,
    mark_of,
    num_queued,
    slots_file,
    still_taken,
    taken_now,
)
from headrace.batch.submit_rate import take
from headrace.batch.submitting import JobRecord, submit_once
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError, JobRefusedError, QueueFullError, SubmitLimitError
from headrace.recipe.batch import Batch
from headrace.record import Record
from headrace.storage.atomic import read_record, write_record

logger = logging.getLogger(__name__)

_MOST_PATIENCE = 6
_TOLD_AGAIN_S = 3600.0
_ASKED_AGAIN_S = 600.0


class ToldLimits(Record):
    """What the batch system told of its limits."""

    asked_at: float
    """When it was asked, seconds since the epoch."""
    limits: tuple[Limit, ...] = ()
    """What it told; empty also when it did not answer."""


@dataclass(frozen=True)
class SubmissionGate:
    """The way into a queue, shared by all processes that use the same folder of leases.

    A job takes a slot before it is submitted, and leaves it when the queue has told its end.

    Args:
        system: The batch system.
        leases: Folder of all leases of the site.
        batch: The site's rules: limits, pace, time between two questions.
    """

    system: BatchSystem
    leases: Path
    batch: Batch

    def submit(self, spec: JobSpec, file: Path) -> JobRecord:
        """Submit a job once, if its turn has come; see `submit_once`.

        Args:
            spec: The job; its name is unique.
            file: The job's record.

        Raises:
            QueueFullError: It is not its turn; nothing was submitted, ask again later.
            JobRefusedError: The batch system refuses the job.
            BatchError: No clear answer and no such job, several times.
        """
        try:
            # what follows a lost answer needs a token, and keeps its slot
            first: Callable[[], None] = partial(self._enter, spec, file)
            tries = chain([first], repeat(self._wait_for_token))
            record = submit_once(self.system, spec, file, lambda: next(tries)())
        except SubmitLimitError as error:
            self._note_refusal(spec.name, error.what)
            raise
        except JobRefusedError:
            self._change(spec.name, leaves=True)
            raise
        self._change(spec.name, job_id=record.job_id)
        return record

    def _enter(self, spec: JobSpec, file: Path) -> None:
        limits = (
            *limits_of_site(self.batch.max_jobs, self.batch.max_queued),
            *self._told(spec),
        )
        why = self._try(spec.name, file, limits)
        if why and queue_snapshot.renew(self.system, self.leases, self.batch.poll):
            why = self._try(spec.name, file, limits)
        if why:
            raise QueueFullError(why, "It is submitted as soon as earlier jobs have ended.")

    def _try(self, name: str, file: Path, limits: tuple[Limit, ...]) -> str:
        """Take a slot and a token, both or none; why not, in words for the user."""
        with self._lock():
            slots, jobs = self._read(), queue_snapshot.read(self.system, self.leases).jobs
            taken = still_taken(slots, jobs, time.time())
            if name not in taken:
                why = _why_not(slots, limits, len(taken), num_queued(taken, jobs))
                if why:
                    return why
            if self._take():
                return f"waiting: site limit of {self.batch.submits_per_minute} submits a minute"
            self._write(slots.model_copy(update={"taken": {name: taken_now(file)} | taken}))
        return ""

    def _wait_for_token(self) -> None:
        while wait_s := self._take():
            time.sleep(wait_s)

    def _take(self) -> float:
        return take(self.leases / ".queue" / "submits.json", self.batch.submits_per_minute)

    def _note_refusal(self, name: str, why: str) -> None:
        with self._lock():
            slots = self._read()
            patience = min(2**slots.num_refusals, _MOST_PATIENCE) * random.uniform(1, 1.25)
            self._write(
                Slots(
                    taken={key: each for key, each in slots.taken.items() if key != name},
                    refused=why,
                    refused_until=time.time() + self.batch.poll * patience,
                    num_refusals=slots.num_refusals + 1,
                )
            )

    def _change(self, name: str, *, job_id: str = "", leaves: bool = False) -> None:
        with self._lock():
            taken = dict(self._read().taken)
            slot = taken.pop(name, None)
            if slot is not None and not leaves:
                taken[name] = slot.model_copy(update={"job_id": job_id})
            self._write(Slots(taken=taken))

    def _told(self, spec: JobSpec) -> tuple[Limit, ...]:
        """What the batch system tells of its limits, asked about once an hour."""
        of = f"{self.system.queue}|{spec.account}|{spec.qos}"
        file = self._file.with_name(f"limits{mark_of(of)}.json")
        told = read_record(file, ToldLimits)
        if told is not None and time.time() - told.asked_at < _TOLD_AGAIN_S:
            return told.limits
        with self._lock("limits"):
            told = read_record(file, ToldLimits)
            if told is None or time.time() - told.asked_at >= _TOLD_AGAIN_S:
                told = self._ask_limits(spec)
                write_record(file, told)
        return told.limits

    def _ask_limits(self, spec: JobSpec) -> ToldLimits:
        try:
            return ToldLimits(asked_at=time.time(), limits=self.system.limits(spec))
        except BatchError as error:
            logger.info("%s; only the site's own limits are kept", error.what)
            return ToldLimits(asked_at=time.time() - _TOLD_AGAIN_S + _ASKED_AGAIN_S)

    @property
    def _file(self) -> Path:
        return slots_file(self.leases, self.system.queue)

    def _lock(self, what: str = "slots") -> FileLock:
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileLock(self._file.with_name(f"{what}.lock"), mode=0o600)

    def _read(self) -> Slots:
        return read_record(self._file, Slots) or Slots()

    def _write(self, slots: Slots) -> None:
        write_record(self._file, slots)


def _why_not(slots: Slots, limits: tuple[Limit, ...], num_jobs: int, waiting: int) -> str:
    if slots.refused_until > time.time():
        return slots.refused
    reached = first_reached(limits, num_jobs, waiting)
    return "" if reached is None else f"waiting: {reached}"
