"""What a pool does with a queue, and a node of it as a job."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.batch.job_records import JobState, JobStatus
from headrace.batch.slurm import Slurm
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters import pool_loop
from headrace.clusters.lease_machines import NodeRequest, node_job
from headrace.clusters.lease_records import PoolRecord
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.pool_loop import PoolLoop
from headrace.files.layout import SiteFolder
from headrace.recipe.site import Role
from support.leases import lease_spec
from support.pool_nodes import pool_job
from support.scripted_commands import SmallSlurm

WANTED = 2


class EnoughSeenError(Exception):
    """Ends a pool that would go on."""


class FakePool:
    """A pool that has work for two nodes, without Dask's scheduler."""

    def __init__(self, site: Path, slurm: SmallSlurm) -> None:
        folder = SiteFolder(site).lease("a-1")
        role = Role.model_validate(
            {"backend": "slurm", "nodes": 4, "lifetime": "1h", "batch": {"poll": 0.01}}
        )
        spec = lease_spec(folder, role)
        self.workers: dict[str, PoolJob] = {}
        self.scheduler = SimpleNamespace(
            workers={}, clients={}, task_metadata={}, adaptive_target=lambda: WANTED
        )
        self._node_job = partial(node_job, folder, spec)
        self.loop = PoolLoop(
            folder, spec, self, SubmissionGate(Slurm(slurm), folder.path.parent, role.batch)
        )

    async def add(self, request: NodeRequest) -> PoolJob:
        name = f"node-{request.number}"
        job = PoolJob(name=name, request=request, spec=self._node_job(request), script="#!/bin/sh")
        self.workers[name] = job
        return job

    def note(self, job: PoolJob, status: JobStatus) -> None:
        job.set_status(status)

    async def drop(self, job: PoolJob) -> None:
        del self.workers[job.name]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[PoolRecord]:
    """What the pool tells, until it has as many jobs as it wants."""
    found: list[PoolRecord] = []

    def write_pool(_: object, record: PoolRecord, __: object) -> None:
        found.append(record)
        if len(record.jobs) == WANTED:
            raise EnoughSeenError

    monkeypatch.setattr(pool_loop, "_TICK_S", 0.01)
    monkeypatch.setattr(pool_loop, "write_pool", write_pool)
    return found


def test_as_many_jobs_are_submitted_as_there_is_work_for(tmp_path: Path, seen: list[PoolRecord]):
    slurm = SmallSlurm()
    with pytest.raises(EnoughSeenError):
        asyncio.run(FakePool(tmp_path, slurm).loop.run())
    assert [(job.node, job.job_id, job.stage) for job in seen[-1].jobs] == [
        ("node-0", "1", "queued"),
        ("node-1", "2", "queued"),
    ]
    assert len(slurm.jobs) == WANTED


def test_a_pool_whose_jobs_are_refused_ends_and_tells_the_words(
    tmp_path: Path, seen: list[PoolRecord]
):
    slurm = SmallSlurm()
    slurm.refuses = "Invalid qos specification"
    pool = FakePool(tmp_path, slurm)
    asyncio.run(pool.loop.run())
    assert "Invalid qos specification" in seen[-1].failure.why
    assert slurm.jobs == {}
    assert pool.workers == {}


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
