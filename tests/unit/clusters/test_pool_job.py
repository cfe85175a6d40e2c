"""What a pool's decisions are told of a node."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.batch.job_records import JobState, JobStatus
from support.pool_nodes import pool_job


@pytest.mark.parametrize(
    ("joined_s", "now_s", "is_old"),
    [(None, 1000.0, False), (100.0, 150.0, False), (100.0, 161.0, True)],
)
def test_a_node_is_old_when_it_has_been_there_for_its_time(
    joined_s: float | None, now_s: float, is_old: bool
) -> None:
    job = pool_job()
    job.retire_s, job.joined_s = 60.0, joined_s
    assert job.node(now_s).is_old is is_old
    assert (job.left_s(now_s) <= 0) is is_old


def test_the_stages_of_a_node_and_since_when_it_is_there() -> None:
    """Its job waits, starts, and gets a worker, which works, rests, and is lost."""
    job = pool_job()
    job.since_s = 0.0
    idle = SimpleNamespace(processing=())
    busy = SimpleNamespace(processing=(SimpleNamespace(worker_restrictions={"node-0"}),))
    seen = []
    for now_s, worker in enumerate((None, None, idle, busy, busy, idle, None), start=10):
        if now_s == 11:
            job.set_status(JobStatus(job_id="7", state=JobState.RUNNING, nodes=("n3",)))
        job.set_worker(worker, now_s)
        seen.append((job.stage.value, job.since_s))
    assert seen == [
        ("queued", 0.0), ("starting", 11), ("idle", 12), ("busy", 13), ("busy", 13), ("idle", 15),
        ("starting", 16),
    ]  # fmt: skip
    assert (job.host, job.joined_s, job.is_bound) == ("n3", 12, False)
