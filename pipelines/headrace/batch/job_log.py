"""What the log of a job tells, as by what the batch system keeps out of its books."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.batch.jobs import JobState, JobStatus

_MEMORY = re.compile(
    r"^(?:slurmstepd|srun)\S*: .*(?:exceeded (?:\w+ )?memory limit|oom[-_ ]kill|out of memory).*$",
    re.IGNORECASE | re.MULTILINE,
)


def with_log(ended: JobStatus, log: str) -> JobStatus:
    """A job that failed for lack of memory, where its state does not say so.

    Slurm gives the state `OUT_OF_MEMORY` when its cgroup plugin has killed the batch step; where
    another step was killed, or memory is polled for, the job has just failed.

    Args:
        ended: What books and queue say of the job.
        log: The end of its log.
    """
    found = _MEMORY.findall(log)
    if ended.state is not JobState.FAILED or not found:
        return ended
    return ended.model_copy(update={"state": JobState.OUT_OF_MEMORY, "reason": found[-1]})


def queue_log(log: str) -> str:
    """Where a batch system writes that can only do so when the job has ended.

    Args:
        log: The log of the job, which the job itself writes.
    """
    return f"{log}.queue"


def end_of(log: Path, num_bytes: int) -> str:
    """The last bytes of a log as text; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - num_bytes, 0))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
