from __future__ import annotations

import pytest

from headrace.batch.job_records import JobState, JobStatus, with_log


@pytest.mark.parametrize(
    ("line", "is_memory"),
    [
        ("slurmstepd-node1: error: StepId=3.batch exceeded memory limit (2 > 1), killed", True),
        ("slurmstepd-node1: error: Exceeded job memory limit", True),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.0 cgroup.", True),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=3.0.", True),
        ("srun: error: node1: task 0: Out Of Memory", True),
        ("srun: error: node1: task 0: Killed", False),
        ("2026-01-01 INFO user code says: out of memory", False),
    ],
)
def test_lack_of_memory(line: str, is_memory: bool):
    """peers 41: told apart also where the books say no more than FAILED."""
    failed = JobStatus(job_id="3", state=JobState.FAILED, reason="JobLaunchFailure")
    told = with_log(failed, f"2026-01-01 INFO before\n{line}\nsrun: forcing job termination\n")
    assert (told.state is JobState.OUT_OF_MEMORY) == is_memory
    assert told.reason == (line if is_memory else "JobLaunchFailure")


def test_other_ends_stay_what_they_are():
    ended = JobStatus(job_id="3", state=JobState.PREEMPTED)
    assert with_log(ended, "slurmstepd: error: Exceeded job memory limit\n") is ended
