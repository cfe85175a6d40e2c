"""Jobs of a batch system as frozen records, and the failure classes of their ends; pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from pydantic import Field

from headrace.files.sharing import open_to_read
from headrace.recipe.batch import Batch
from headrace.record import Record
from headrace.states import FailureClass

JOB_STARTED = "HEADRACE_JOB_STARTED"
"""Environment variable of a job: when its script began, seconds since the epoch."""

_MEMORY = re.compile(
    r"^(?:slurmstepd|srun)\S*: .*(?:exceeded (?:\w+ )?memory limit|oom[-_ ]kill|out of memory).*$",
    re.IGNORECASE | re.MULTILINE,
)


class JobSpec(Batch):
    """A job to submit: the site's settings for jobs, and one command to run on each node."""

    name: str
    """Name of the job; unique, so that the job can be found after a lost answer."""
    command: tuple[str, ...]
    """Program and arguments, run once on every node."""
    nodes: int
    cpus_per_node: int
    time_limit_s: float
    """The batch system ends the job after this time, seconds."""
    folder: str
    log: str
    environment: dict[str, str] = {}
    """Environment variables of the command."""
    heartbeat: str = ""
    """File that changes as long as the job is needed; machines end themselves when it stops."""
    notice: str = ""
    """File into which the machines write why they are about to be taken away."""
    at_risk: str = ""
    """File into which the machines write why they may be taken away soon."""
    silence_s: float = 0.0
    """Time without a heartbeat after which the machines end, seconds."""

    @property
    def slots(self) -> int:
        """CPUs of all nodes together."""
        return self.nodes * self.cpus_per_node


class JobState(str, Enum):
    """State of a job, in terms that all batch systems share."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed out"
    NODE_FAILED = "node failed"
    OUT_OF_MEMORY = "out of memory"
    UNKNOWN = "unknown"

    @property
    def is_final(self) -> bool:
        """Whether the job holds no machines and never will again."""
        return self not in (JobState.PENDING, JobState.RUNNING)


class JobView(Record):
    """State of the job that holds a lease's machines, as its batch system reports it."""

    is_ended: bool
    """Whether the job has ended, or can never start."""
    why: str
    """The state for users: why the job waits, or how it ended."""
    failure_class: FailureClass = FailureClass.LOST
    """Failure class of its end, for the work on it."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that are at fault, as far as known."""
    starts_at: float | None = None
    """Expected start, seconds since the epoch; null if unknown."""


class JobStatus(Record):
    """State of one job, as a batch system reports it."""

    job_id: str
    state: JobState
    reason: str = ""
    """Why it waits or ended, in the batch system's words; empty if not reported."""
    starts_at: float | None = None
    """Expected start, seconds since the epoch; null if unknown."""
    running_since: float | None = None
    """When this machine first observed it running, by its clock; null if it has not, or unknown."""
    nodes: tuple[str, ...] = ()
    """Names of its nodes, the first task's first; empty if it has none, or they are unknown."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes whose failure ended it, as far as known."""
    earlier: JobState | None = None
    """How it ended before the batch system requeued it; null if never requeued."""
    is_from_books: bool = False
    """Whether this comes from the accounting, which is final."""
    never_starts: bool = False
    """Whether it waits for something that can never happen."""
    is_taken: bool = False
    """Whether its machines are about to be taken away."""
    nodes_are_out: bool = False
    """Whether it waits because the nodes that it may use are down or drained."""
    seen_at: float = Field(default_factory=time.time)
    """When this was reported, seconds since the epoch."""


_CLASSES = {
    JobState.PREEMPTED: FailureClass.PREEMPTED,
    JobState.TIMED_OUT: FailureClass.TIMED_OUT,
    JobState.NODE_FAILED: FailureClass.INFRASTRUCTURE,
    JobState.OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
    # cancelled in the batch system: to stop the work itself, users cancel the run
    JobState.CANCELLED: FailureClass.LOST,
}


def failure_class(status: JobStatus) -> FailureClass:
    """Return the failure class of a job that has ended, or never starts."""
    if status.never_starts:
        return FailureClass.USER_ERROR
    return _CLASSES.get(status.state, FailureClass.LOST)


def ended_on(nodes: tuple[str, ...], ended: JobStatus) -> JobStatus:
    """Return an ended job with its nodes, for systems that watch only the first of them."""
    failed = nodes[:1] if ended.state is JobState.NODE_FAILED else ()
    return ended.model_copy(update={"nodes": nodes, "failed_nodes": failed})


def put_back(status: JobStatus, *, has_started: bool) -> bool:
    """Whether the batch system has requeued a job that had started."""
    return status.earlier is not None or (has_started and status.state is JobState.PENDING)


def put_back_view(status: JobStatus, system: str) -> JobView:
    """Return the view of a requeued job as ended: headrace submits a new job instead."""
    how = status.earlier.value if status.earlier is not None else "stopped"
    earlier = status.model_copy(update={"state": status.earlier or JobState.UNKNOWN})
    return JobView(
        is_ended=True,
        why=f"{system} job {status.job_id} was {how}, and {system} put it back into the queue, "
        "where headrace cancels it: a new job follows from headrace. Take --requeue out of the "
        "role's batch.options, or ask your administrators for jobs that are not requeued",
        failure_class=failure_class(earlier),
    )


def overdue_view(status: JobStatus, system: str, timeout_s: float) -> JobView:
    """Return the view of a running job whose first task never reported."""
    on = f" on {', '.join(status.nodes)}" if status.nodes else ""
    return JobView(
        is_ended=True,
        why=f"{system} job {status.job_id} has been running{on} for more than {timeout_s:g} s, "
        "and its first task has never reported (start_timeout of the role)",
        failure_class=FailureClass.INFRASTRUCTURE,
        bad_nodes=status.nodes[:1],
    )


def view_of(status: JobStatus, system: str) -> JobView:
    """Return a job's state for users and the control side."""
    name = f"{system} job {status.job_id}"
    if status.never_starts:
        why = f"{name} can never start: {status.reason}"
        return JobView(is_ended=True, why=why, failure_class=failure_class(status))
    if not status.state.is_final:
        words = waits_for(status, system)
        return JobView(
            is_ended=False,
            why=f"{name} is {status.state.value}{words and f': {words}'}",
            starts_at=expected_start([status]),
        )
    on = f" (on {', '.join(status.failed_nodes)})" if status.failed_nodes else ""
    return JobView(
        is_ended=True,
        why=f"{name} ended: {status.state.value}{on}{status.reason and f': {status.reason}'}",
        failure_class=failure_class(status),
        bad_nodes=status.failed_nodes,
    )


def expected_start(jobs: Iterable[JobStatus]) -> float | None:
    """Return the earliest expected start among waiting jobs; None if unknown."""
    waiting = (job.starts_at for job in jobs if job.state is JobState.PENDING)
    return min((at for at in waiting if at is not None), default=None)


def waits_for(status: JobStatus, system: str) -> str:
    """Return a job's reason and expected start: `Resources, expected 14:05 CET`."""
    parts = [status.reason]
    if status.state is JobState.PENDING and status.starts_at is not None:
        parts.append(f"expected {_moment(status.starts_at, status.seen_at)}")
    elif status.state is JobState.PENDING and status.reason:  # without a reason: not polled yet
        parts.append(f"{system} gives no expected start")
    return ", ".join(filter(None, parts))


def _moment(at: float, now: float) -> str:
    """Format a time in this process's zone: `14:05 CET`, another day `Fri 2 Jan 14:05 CET`."""
    local, today = time.localtime(at), time.localtime(now)
    day = "" if local[:3] == today[:3] else f"{time.strftime('%a', local)} {local.tm_mday} "
    month = f"{time.strftime('%b', local)} " if day else ""
    return f"{day}{month}{time.strftime('%H:%M %Z', local)}"


def with_log(ended: JobStatus, log: str) -> JobStatus:
    """Return a failed job as out of memory if its log says so.

    Slurm reports `OUT_OF_MEMORY` only if its cgroup plugin has killed the batch step; if another
    step was killed, or memory is polled, it reports `FAILED`.
    """
    found = _MEMORY.findall(log)
    if ended.state is not JobState.FAILED or not found:
        return ended
    return ended.model_copy(update={"state": JobState.OUT_OF_MEMORY, "reason": found[-1]})


def queue_log(log: str) -> str:
    """Return the log file of a batch system that writes its output only after the job's end."""
    return f"{log}.queue"


def end_of(log: Path, num_bytes: int) -> str:
    """Return the last bytes of a log as text; empty if the log does not exist."""
    try:
        with open_to_read(log) as file:
            file.seek(max(file.seek(0, 2) - num_bytes, 0))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
