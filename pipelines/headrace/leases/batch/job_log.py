"""What the batch system writes into a job's log and keeps out of its books; pure."""

from __future__ import annotations

import re

from headrace.leases.batch.jobs import JobSight, JobState

_MEMORY = re.compile(
    r"^(?:slurmstepd|srun)\S*: .*(?:exceeded (?:\w+ )?memory limit|oom[-_ ]kill|out of memory).*$",
    re.IGNORECASE | re.MULTILINE,
)


def with_log(ended: JobSight, log: str) -> JobSight:
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
