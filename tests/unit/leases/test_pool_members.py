"""What a pool's decisions are told of a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.leases.batch.jobs import JobSight, JobState
from headrace.leases.batch.submitting import JobRecord
from headrace.leases.pool_jobs import PoolJob
from headrace.leases.pool_members import Member


def member_of(**changes: Any) -> Member:
    """A node of a job that runs, unless said otherwise."""
    record = JobRecord(job_id="7", name="pool-1", submitted_at=0.0)
    values = {
        "job": PoolJob(serial=1, number=0, record=record),
        "sight": JobSight(job_id="7", state=JobState.RUNNING),
        "asked_s": 0.0,
        "retire_s": 60.0,
        "since_s": 0.0,
    }
    return Member(**{**values, **changes})


@pytest.mark.parametrize(
    ("joined_s", "now_s", "is_old"),
    [(None, 1000.0, False), (100.0, 150.0, False), (100.0, 161.0, True)],
)
def test_a_node_is_old_when_it_has_been_there_for_its_time(
    joined_s: float | None, now_s: float, is_old: bool
) -> None:
    assert member_of(joined_s=joined_s).node(now_s).is_old is is_old


def test_the_stages_of_a_node_and_since_when_it_is_there() -> None:
    """Its job waits, starts, and gets a worker, which works, rests, and is lost."""
    member = member_of(sight=JobSight(job_id="7", state=JobState.PENDING))
    idle = SimpleNamespace(processing=())
    busy = SimpleNamespace(processing=(SimpleNamespace(worker_restrictions={"node-0"}),))
    seen = []
    for now_s, worker in enumerate((None, None, idle, busy, busy, idle, None), start=10):
        if now_s == 11:
            member.take(JobSight(job_id="7", state=JobState.RUNNING, nodes=("n3",)))
        member.see(worker, now_s)
        seen.append((member.stage.value, member.since_s))
    assert seen == [
        ("queued", 0.0), ("starting", 11), ("idle", 12), ("busy", 13), ("busy", 13), ("idle", 15),
        ("starting", 16),
    ]  # fmt: skip
    assert (member.host, member.joined_s, member.is_bound) == ("n3", 12, False)
