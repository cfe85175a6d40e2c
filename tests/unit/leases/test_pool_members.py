"""What a pool's decisions are told of a node."""

from __future__ import annotations

import pytest

from headrace.leases.batch.jobs import JobSight, JobState
from headrace.leases.batch.submitting import JobRecord
from headrace.leases.pool_jobs import PoolJob
from headrace.leases.pool_members import Member


@pytest.mark.parametrize(
    ("joined_s", "now_s", "is_old"),
    [(None, 1000.0, False), (100.0, 150.0, False), (100.0, 161.0, True)],
)
def test_a_node_is_old_when_it_has_been_there_for_its_time(
    joined_s: float | None, now_s: float, is_old: bool
) -> None:
    member = Member(
        job=PoolJob(
            serial=1, number=0, record=JobRecord(job_id="7", name="pool-1", submitted_at=0.0)
        ),
        sight=JobSight(job_id="7", state=JobState.RUNNING),
        asked_s=0.0,
        retire_s=60.0,
        since_s=0.0,
        joined_s=joined_s,
    )
    assert member.node(now_s).is_old is is_old
