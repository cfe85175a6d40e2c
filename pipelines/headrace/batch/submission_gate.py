"""Submission into a queue: few submissions per minute, and no more jobs than the limits allow."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from headrace import errors
from headrace.batch import queue_state
from headrace.batch.job_records import JobSpec
from headrace.batch.queue_state import JobRecord, KnownLimits, QueueState, Slot
from headrace.batch.system import BatchSystem, Limit
from headrace.files.atomic import read_record, write_json, write_record, write_text
from headrace.recipe.batch import Batch

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE_S = 2.0

BURST = 4
"""Jobs that may be submitted at once after a pause."""

_ASK_LIMITS_EVERY_S = 3600.0
_ASK_SILENT_AGAIN_S = 600.0


@dataclass(frozen=True)
class SubmissionGate:
    """Submits jobs to a queue for all processes that share a folder of leases.

    A job takes a slot before its submission, and keeps it until the queue has reported its end.
    """

    system: BatchSystem
    leases: Path
    """Folder of all leases of the site."""
    batch: Batch
    """The site's limits, rate of submission and polling interval."""

    def submit(self, spec: JobSpec, file: Path) -> JobRecord:
        """Submit a job once, if the limits allow it now; the caller holds the lock of its lease.

        Its record is written to `file`. After a lost answer, or the death of a submitter, the job
        is searched by name before it is submitted again.

        Raises:
            QueueFullError: A limit is reached; nothing was submitted, try again later.
            JobRefusedError: The batch system refuses the job.
            BatchError: Several attempts got no clear answer, and the job was not found.
        """
        try:
            record = self._submit_once(spec, file)
        except errors.SubmitLimitError as error:
            self._change(partial(_refused, name=spec.name, why=error.what, poll_s=self.batch.poll))
            raise
        except errors.JobRefusedError:
            self._change(partial(_submitted, name=spec.name, job_id=""))
            raise
        self._change(partial(_submitted, name=spec.name, job_id=record.job_id))
        return record

    def _submit_once(self, spec: JobSpec, file: Path) -> JobRecord:
        system = self.system
        for attempt in range(_ATTEMPTS):
            record = recovered(system, spec.name, file)
            if record is not None:
                return record
            if attempt == 0:
                self._enter(spec, file)
            else:  # after a lost answer the slot is still held
                while wait_s := self._take_token():
                    time.sleep(wait_s)
            write_text(queue_state.intent_of(file), spec.name)
            try:
                return _recorded(system, system.submit(spec), spec.name, file)
            except (errors.JobRefusedError, errors.SubmitLimitError):
                queue_state.intent_of(file).unlink()
                raise
            except errors.AmbiguousSubmitError as error:
                logger.warning("%s; looking for the job by its name", error.what)
                time.sleep(_PAUSE_S * 2**attempt * random.uniform(0.75, 1.25))
        record = recovered(system, spec.name, file)
        if record is None:
            raise errors.BatchError(
                f"{system.name} took no job {spec.name} in {_ATTEMPTS} attempts"
            )
        return record

    def _enter(self, spec: JobSpec, file: Path) -> None:
        of_site = ((self.batch.max_jobs, False), (self.batch.max_queued, True))
        limits = [
            Limit(most=most, queued_only=queued_only, whose="site")
            for most, queued_only in of_site
            if most is not None
        ]
        limits += self._limits_of_system(spec)
        why = self._try(spec.name, file, limits)
        if why and queue_state.renew(self.system, self.leases, self.batch.poll):
            why = self._try(spec.name, file, limits)
        if why:
            raise errors.QueueFullError(why, "It is submitted as soon as earlier jobs have ended.")

    def _try(self, name: str, file: Path, limits: Sequence[Limit]) -> str:
        """Take a slot and a token, or neither; return why not, for users."""
        why = ""

        def take(state: QueueState) -> QueueState | None:
            nonlocal why
            now = time.time()
            taken = state.still_taken(now)
            if name not in taken:
                why = _why_not(state, limits, taken)
            if not why and self._take_token():
                why = f"waiting: site limit of {self.batch.submits_per_minute} submits a minute"
            slot = Slot(file=str(file), taken_at=now)
            return None if why else state.model_copy(update={"taken": {name: slot} | taken})

        self._change(take)
        return why

    def _take_token(self) -> float:
        file = self.leases / ".queue" / "submits.json"
        return take_token(file, self.batch.submits_per_minute)

    def _limits_of_system(self, spec: JobSpec) -> tuple[Limit, ...]:
        of = f"{spec.account}|{spec.qos}"
        known = queue_state.read_state(self._file).limits.get(of)
        now = time.time()
        if known is None or now - known.asked_at >= _ASK_LIMITS_EVERY_S:
            try:
                known = KnownLimits(asked_at=now, limits=self.system.limits(spec))
            except errors.BatchError as error:
                logger.info("%s; only the site's own limits apply", error.what)
                known = KnownLimits(asked_at=now - _ASK_LIMITS_EVERY_S + _ASK_SILENT_AGAIN_S)
            new = {of: known}
            self._change(lambda state: state.model_copy(update={"limits": state.limits | new}))
        return known.limits

    def _change(self, change: Callable[[QueueState], QueueState | None]) -> None:
        """Change the state of the queue under its lock; if the change returns None, keep it."""
        with queue_state.locked(self._file):
            changed = change(queue_state.read_state(self._file))
            if changed is not None:
                write_record(self._file, changed)

    @property
    def _file(self) -> Path:
        return queue_state.state_file(self.leases, self.system.queue)


def _why_not(state: QueueState, limits: Sequence[Limit], taken: dict[str, Slot]) -> str:
    if state.refused_until > time.time():
        return state.refused
    num_queued = state.num_queued(taken.values())
    for limit in limits:
        if (num_queued if limit.queued_only else len(taken)) >= limit.most:
            return f"waiting: {limit}"
    return ""


def _submitted(state: QueueState, name: str, job_id: str) -> QueueState:
    """Return the state with the slot's job; without a job the slot is freed."""
    taken = dict(state.taken)
    slot = taken.pop(name, None)
    if slot is not None and job_id:
        taken[name] = slot.model_copy(update={"job_id": job_id})
    update = {"taken": taken, "refused": "", "refused_until": 0.0, "num_refusals": 0}
    return state.model_copy(update=update)


def _refused(state: QueueState, name: str, why: str, poll_s: float) -> QueueState:
    """Return the state after a refusal: submissions pause, each time for longer."""
    update = {
        "taken": {key: each for key, each in state.taken.items() if key != name},
        "refused": why,
        "refused_until": time.time() + poll_s * queue_state.patience_after(state.num_refusals),
        "num_refusals": state.num_refusals + 1,
    }
    return state.model_copy(update=update)


def take_token(file: Path, per_minute: int) -> float:
    """Take a token from the site's bucket of submissions; return 0, or seconds until the next."""
    with queue_state.locked(file):
        now = time.time()
        bucket = json.loads(file.read_text()) if file.exists() else {"tokens": BURST, "at": now}
        there = tokens_after(bucket["tokens"], now - bucket["at"], per_minute)
        if there < 1.0:
            return (1.0 - there) * 60.0 / per_minute
        write_json(file, {"tokens": there - 1.0, "at": now})
    return 0.0


def tokens_after(tokens: float, passed_s: float, per_minute: int) -> float:
    """Return the tokens in the bucket after some time; pure."""
    return min(float(BURST), tokens + max(passed_s, 0.0) * per_minute / 60.0)


def recovered(system: BatchSystem, name: str, file: Path) -> JobRecord | None:
    """Record the job, if any, that a dead submitter left unrecorded; submit nothing."""
    known = read_record(file, JobRecord)
    if known is not None or not queue_state.intent_of(file).exists():
        return known
    found = system.find(name)
    return _recorded(system, found[-1].job_id, name, file) if found else None


def _recorded(system: BatchSystem, job_id: str, name: str, file: Path) -> JobRecord:
    record = JobRecord(job_id=job_id, name=name, queue=system.queue, submitted_at=time.time())
    write_record(file, record)
    queue_state.intent_of(file).unlink()
    return record
