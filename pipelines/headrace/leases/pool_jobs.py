"""The jobs of a pool on a batch system: one node each, submitted and ended by its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import BatchError, JobRefusedError, LeaseError
from headrace.leases.batch.board import sights
from headrace.leases.batch.gate import Gate
from headrace.leases.batch.job_log import end_of, queue_log
from headrace.leases.batch.jobs import JobSight, JobSpec
from headrace.leases.batch.submitting import JobRecord
from headrace.leases.batch.system import BatchSystem
from headrace.recipe.site import Role
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder

_CANCEL_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 1.0
_TAIL_BYTES = 8192
_TAIL_LINES = 5


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """What the job of a node is asked to be."""

    number: int
    """Place of the node, from 0."""
    time_limit_s: float
    """Time limit of the job, seconds."""
    exclude: tuple[str, ...] = ()
    """Nodes that it must not get."""


@dataclass(frozen=True, kw_only=True)
class PoolJob:
    """The job of one node."""

    serial: int
    """Jobs of the pool are counted from 1; no two have the same."""
    number: int
    """Place of its node, from 0."""
    record: JobRecord
    """What the batch system knows it by."""
    exclude: tuple[str, ...] = ()
    """Nodes that it must not get."""


class PoolJobs:
    """The jobs of one pool; its methods ask the batch system and block.

    Args:
        folder: The lease.
        gate: The way into the queue.
        spec: The job of a node, from its serial number and what is asked for.
    """

    def __init__(
        self, folder: LeaseFolder, gate: Gate, spec: Callable[[int, NodeRequest], JobSpec]
    ) -> None:
        self._folder = folder
        self._gate = gate
        self._spec = spec
        self._is_stopped = False
        self._serial = 1
        self._unclear: NodeRequest | None = None

    @property
    def system(self) -> BatchSystem:
        """The batch system."""
        return self._gate.system

    def submit(self, request: NodeRequest) -> PoolJob:
        """Submit the job of a node, once.

        After a `BatchError` nobody knows whether there is a job: the next call is about the same
        one, whatever it asks for.

        Args:
            request: What it is asked to be.

        Raises:
            JobRefusedError: The batch system refuses the job.
            QueueFullError: It is not the job's turn; nothing was submitted.
            BatchError: It does not answer.
            LeaseError: `stop` was called.
        """
        if self._is_stopped:
            raise LeaseError("The pool is closing")
        request = self._unclear or request
        job = self._spec(self._serial, request)
        file = _record_file(self._folder, self._serial)
        try:
            record = self._gate.submit(job, file)
        except JobRefusedError:
            self._unclear = None
            raise
        except BatchError:
            self._unclear = request
            raise
        made = PoolJob(
            serial=self._serial, number=request.number, record=record, exclude=request.exclude
        )
        self._serial += 1
        self._unclear = None
        return made

    def sights(self, jobs: Sequence[PoolJob]) -> dict[str, JobSight]:
        """How jobs stand, by id; the queue is asked every `poll_s` for all leases together."""
        if not jobs:
            return {}
        leases = self._folder.path.parent
        poll_s = self._gate.batch.poll
        return sights(self.system, leases, [job.record for job in jobs], poll_s)

    def cancel(self, jobs: Sequence[PoolJob]) -> None:
        """End jobs.

        Raises:
            BatchError: The batch system does not answer.
        """
        self.system.cancel([job.record.job_id for job in jobs])

    def forget(self, job: PoolJob) -> None:
        """Remove the record of a job that has ended; its log stays."""
        _record_file(self._folder, job.serial).unlink(missing_ok=True)

    def log_of(self, job: PoolJob) -> Path:
        """The log of a job."""
        return log_file(self._folder, job.serial)

    def last_words(self, job: PoolJob) -> str:
        """The last lines of a job, else of the batch system about it; empty when there are none."""
        log = self.log_of(job)
        text = end_of(log, _TAIL_BYTES) or end_of(Path(queue_log(str(log))), _TAIL_BYTES)
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def stop(self) -> None:
        """Let no further job be submitted."""
        self._is_stopped = True


def host_job(gang: JobSpec, role: Role) -> JobSpec:
    """The job of a pool's host: one CPU of one node, and no more."""
    program, *_, folder = gang.command
    return gang.model_copy(
        update={
            "command": (program, "-m", "headrace.leases.host", folder),
            "nodes": 1,
            "cpus_per_node": 1,
            "gpus_per_node": 0,
            "gpu_type": None,
            "memory_bytes": None,
            "constraint": None,
            "exclusive": False,
            "nodelist": (),
            "parallel_environment": None,
            "options": role.host_options,
        }
    )


def node_job(gang: JobSpec, folder: LeaseFolder, serial: int, request: NodeRequest) -> JobSpec:
    """The job of one node of a pool.

    Args:
        gang: The job that would have all nodes.
        folder: The lease.
        serial: Jobs of the pool are counted from 1.
        request: What is asked for; its nodes to avoid come on top of the site's.
    """
    return gang.model_copy(
        update={
            "name": f"{gang.name}-{serial}",
            "command": (gang.command[0], "-m", "headrace.leases.worker", str(folder.path),
                        str(request.number)),
            "nodes": 1,
            "time_limit_s": request.time_limit_s,
            "exclude": (*gang.exclude, *request.exclude),
            "log": str(log_file(folder, serial)),
        }
    )  # fmt: skip


def log_file(folder: LeaseFolder, serial: int) -> Path:
    """Log of the job with this serial number."""
    return folder.jobs / f"{serial:06d}.log"


def end_jobs(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """Cancel all jobs of a pool and wait until they have gone; then their records go too.

    Args:
        system: The batch system.
        folder: The lease.
        grace_s: Seconds that they have to end by themselves.

    Returns:
        How many were cancelled.

    Raises:
        BatchError: The batch system does not answer, or a job does not end.
    """
    job_ids = _job_ids(system, folder)
    if not job_ids:
        return 0
    left = _left(system, job_ids, grace_s)
    if left:
        system.cancel(left)
    stuck = _left(system, left, _CANCEL_TIMEOUT_S)
    if stuck:
        raise BatchError(
            f"{system.name} jobs {', '.join(stuck)} were cancelled and have not ended "
            f"after {_CANCEL_TIMEOUT_S:g} s",
            "`headrace lease reap` tries again.",
        )
    for file in (*folder.jobs.glob("*.json"), *folder.jobs.glob("*.submitting")):
        file.unlink(missing_ok=True)
    return len(left)


def _job_ids(system: BatchSystem, folder: LeaseFolder) -> list[str]:
    """Jobs on record, and those that were being submitted when the host was killed."""
    records = [read_record(file, JobRecord) for file in folder.jobs.glob("*.json")]
    found = {record.job_id for record in records if record is not None}
    for intent in folder.jobs.glob("*.submitting"):
        found.update(sight.job_id for sight in system.find(intent.read_text()))
    return sorted(found)


def _left(system: BatchSystem, job_ids: Sequence[str], timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while True:
        told = system.poll(job_ids) if job_ids else {}
        left = [job_id for job_id in told if not told[job_id].state.is_final]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK_EVERY_S)


def _record_file(folder: LeaseFolder, serial: int) -> Path:
    return folder.jobs / f"{serial:06d}.json"
