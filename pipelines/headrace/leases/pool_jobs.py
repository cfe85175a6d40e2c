"""The jobs of a pool on a batch system: one node each, submitted and ended by its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.batch.jobs import JobSpec, end_of, queue_log
from headrace.batch.submission_gate import SubmissionGate
from headrace.batch.submitting import JobRecord
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
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

    serial: int
    """Jobs of the pool are counted from 1; no two have the same."""
    number: int
    """Place of the node, from 0."""
    time_limit_s: float
    """Time limit of the job, seconds."""
    exclude: tuple[str, ...] = ()
    """Nodes that it must not get."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Where the jobs of a pool wait."""

    gate: SubmissionGate
    """The way into it."""
    node_job: Callable[[NodeRequest], JobSpec]
    """The job of a node."""
    job_ids: tuple[str, ...] = ()
    """Id of the host's own job, if it has one."""


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


def node_job(gang: JobSpec, folder: LeaseFolder, request: NodeRequest) -> JobSpec:
    """The job of one node of a pool.

    Args:
        gang: The job that would have all nodes.
        folder: The lease.
        request: What is asked for; its nodes to avoid come on top of the site's.
    """
    return gang.model_copy(
        update={
            "name": f"{gang.name}-{request.serial}",
            "command": (gang.command[0], "-m", "headrace.leases.worker", str(folder.path),
                        str(request.number)),
            "nodes": 1,
            "time_limit_s": request.time_limit_s,
            "exclude": (*gang.exclude, *request.exclude),
            "log": str(log_file(folder, request.serial)),
        }
    )  # fmt: skip


def record_file(folder: LeaseFolder, serial: int) -> Path:
    """Record of the job with this serial number, until it has ended."""
    return folder.jobs / f"{serial:06d}.json"


def log_file(folder: LeaseFolder, serial: int) -> Path:
    """Log of the job with this serial number."""
    return folder.jobs / f"{serial:06d}.log"


def last_words(folder: LeaseFolder, serial: int) -> str:
    """The last lines of a job, else of the batch system about it; empty when there are none."""
    log = log_file(folder, serial)
    text = end_of(log, _TAIL_BYTES) or end_of(Path(queue_log(str(log))), _TAIL_BYTES)
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


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
        found.update(status.job_id for status in system.find(intent.read_text()))
    return sorted(found)


def _left(system: BatchSystem, job_ids: Sequence[str], timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    while True:
        told = system.poll(job_ids) if job_ids else {}
        left = [job_id for job_id in told if not told[job_id].state.is_final]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK_EVERY_S)
