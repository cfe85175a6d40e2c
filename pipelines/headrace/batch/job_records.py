"""Jobs of a batch system as frozen records, and what their ends mean; pure."""

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
    """A job as headrace asks for it: what a site says of its jobs, and one command on each node."""

    name: str
    """Name of the job; no other job has it, so that a lost answer can be looked up."""
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
    """File that changes as long as somebody needs the job, for machines that end by themselves."""
    notice: str = ""
    """File into which they write why they are about to be taken away."""
    at_risk: str = ""
    """File into which they write why they may be taken away soon."""
    silence_s: float = 0.0
    """They end when it has not changed for this time, seconds."""

    @property
    def slots(self) -> int:
        """CPUs of all nodes together."""
        return self.nodes * self.cpus_per_node


class JobState(str, Enum):
    """State of a job in words that all batch systems share."""

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
        """Whether the job holds no machines and never will."""
        return self not in (JobState.PENDING, JobState.RUNNING)


class JobView(Record):
    """What a batch system says of the job that holds a lease's machines."""

    is_ended: bool
    """Whether nothing more will come of the job."""
    why: str
    """How it stands, for the user: why it waits, or how it ended."""
    failure_class: FailureClass = FailureClass.LOST
    """What its end means for the work on it."""
    bad_nodes: tuple[str, ...] = ()
    """Nodes that are at fault, as far as they are known."""
    starts_at: float | None = None
    """When it is expected to start, seconds since the epoch; null when that is not known."""


class JobStatus(Record):
    """What a batch system tells of one job."""

    job_id: str
    state: JobState
    reason: str = ""
    """Why it waits or ended, in the batch system's words; empty when it gives none."""
    starts_at: float | None = None
    """When it is expected to start, seconds since the epoch; null when that is not known."""
    running_since: float | None = None
    """When it was first seen to run, by the clock of this machine; null before, or if unknown."""
    nodes: tuple[str, ...] = ()
    """Names of its nodes, the first task's first; empty when it has none, or they are not known."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes by whose failure it ended, as far as they are known."""
    earlier: JobState | None = None
    """How it ended before the batch system put it back into the queue; null when it never did."""
    is_from_books: bool = False
    """Whether the books told this, so that they have no more to say."""
    never_starts: bool = False
    """Whether it waits for something that waiting does not bring."""
    is_taken: bool = False
    """Whether its machines are about to be taken away."""
    nodes_are_out: bool = False
    """Whether it waits since the nodes that it may get are down or drained."""
    seen_at: float = Field(default_factory=time.time)
    """When this was told, seconds since the epoch."""


_CLASSES = {
    JobState.PREEMPTED: FailureClass.PREEMPTED,
    JobState.TIMED_OUT: FailureClass.TIMED_OUT,
    JobState.NODE_FAILED: FailureClass.INFRASTRUCTURE,
    JobState.OUT_OF_MEMORY: FailureClass.OUT_OF_MEMORY,
    # by hand: whoever wants the work itself to stop cancels the run
    JobState.CANCELLED: FailureClass.LOST,
}


def failure_class(status: JobStatus) -> FailureClass:
    """Policy for the work of a job that ended, or never starts."""
    if status.never_starts:
        return FailureClass.USER_ERROR
    return _CLASSES.get(status.state, FailureClass.LOST)


def ended_on(nodes: tuple[str, ...], ended: JobStatus) -> JobStatus:
    """Add where a job ran that has ended, for systems that tell no more of its nodes.

    They look at the first node only, so that it is the one whose failure ends a job.
    """
    failed = nodes[:1] if ended.state is JobState.NODE_FAILED else ()
    return ended.model_copy(update={"nodes": nodes, "failed_nodes": failed})


def put_back(status: JobStatus, *, has_started: bool) -> bool:
    """Whether a job that had started is in the queue again, or was there."""
    return status.earlier is not None or (has_started and status.state is JobState.PENDING)


def put_back_view(status: JobStatus, system: str) -> JobView:
    """A job that the batch system starts again by itself: it never gets to work a second time."""
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
    """A job that runs, and whose first task never reported."""
    on = f" on {', '.join(status.nodes)}" if status.nodes else ""
    return JobView(
        is_ended=True,
        why=f"{system} job {status.job_id} has been running{on} for more than {timeout_s:g} s, "
        "and its first task has never reported (start_timeout of the role)",
        failure_class=FailureClass.INFRASTRUCTURE,
        bad_nodes=status.nodes[:1],
    )


def view_of(status: JobStatus, system: str) -> JobView:
    """A job as users and the control side see it."""
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
    """When the first of those jobs that wait is expected to start; None when nobody tells."""
    waiting = (job.starts_at for job in jobs if job.state is JobState.PENDING)
    return min((at for at in waiting if at is not None), default=None)


def waits_for(status: JobStatus, system: str) -> str:
    """What a job waits for, and until when: `Resources, expected 14:05 CET`; never a guess."""
    parts = [status.reason]
    if status.state is JobState.PENDING and status.starts_at is not None:
        parts.append(f"expected {_moment(status.starts_at, status.seen_at)}")
    elif status.state is JobState.PENDING and status.reason:  # otherwise nobody was asked yet
        parts.append(f"{system} gives no expected start")
    return ", ".join(filter(None, parts))


def _moment(at: float, now: float) -> str:
    """A time in this process's time zone: `14:05 CET`, on another day `Fri 2 Jan 14:05 CET`."""
    local, today = time.localtime(at), time.localtime(now)
    day = "" if local[:3] == today[:3] else f"{time.strftime('%a', local)} {local.tm_mday} "
    month = f"{time.strftime('%b', local)} " if day else ""
    return f"{day}{month}{time.strftime('%H:%M %Z', local)}"


def with_log(ended: JobStatus, log: str) -> JobStatus:
    """A job that failed for lack of memory, where its state does not say so.

    Slurm gives the state `OUT_OF_MEMORY` when its cgroup plugin has killed the batch step; where
    another step was killed, or memory is polled for, the job has just failed.
    """
    found = _MEMORY.findall(log)
    if ended.state is not JobState.FAILED or not found:
        return ended
    return ended.model_copy(update={"state": JobState.OUT_OF_MEMORY, "reason": found[-1]})


def queue_log(log: str) -> str:
    """Where a batch system writes that can only do so when the job has ended."""
    return f"{log}.queue"


def end_of(log: Path, num_bytes: int) -> str:
    """The last bytes of a log as text; empty when there is none."""
    try:
        with open_to_read(log) as file:
            file.seek(max(file.seek(0, 2) - num_bytes, 0))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
