"""When a pool asks for nodes, gives them back and gives up; a role and a node of a queue."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.job_records import JobState, JobStatus
from headrace.batch.slurm import Slurm
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters import pool_loop
from headrace.clusters.lease_machines import NodeRequest, node_job
from headrace.clusters.lease_records import PoolRecord
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.pool_loop import PoolLoop
from headrace.clusters.pool_policy import (
    MAX_FAILURES,
    MAX_UNUSED,
    STABLE_S,
    Failures,
    PoolNode,
    ScalingPlan,
    Stage,
    plan,
)
from headrace.files.layout import SiteFolder
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import Failure, StepResult, blamed
from support.leases import lease_spec
from support.pool_nodes import pool_job
from support.scripted_commands import SmallSlurm

NOW_S = 1000.0
ROLE = Role(backend="slurm", nodes=4, keep_nodes="30s")


def _node(number: int, stage: Stage, since_s: float = 0.0, **changes: bool) -> PoolNode:
    return PoolNode(number=number, stage=stage, since_s=since_s, **changes)


def _wanted(nodes: int, **changes: Any) -> dict[str, Any]:
    """What a pool of up to four nodes that has work for so many is told."""
    return {"wanted": nodes, "role": ROLE, "now_s": NOW_S, "surplus_since_s": 0.0} | changes


@pytest.mark.parametrize(
    ("nodes", "given", "wanted"),
    [
        ([], _wanted(0), ScalingPlan()),
        ([], _wanted(3), ScalingPlan(submit=3)),
        ([], _wanted(9), ScalingPlan(submit=4)),
        ([_node(0, Stage.QUEUED), _node(1, Stage.STARTING)], _wanted(3), ScalingPlan(submit=1)),
        # one that leaves is no node any more, but still a job
        (
            [_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(3)],
            _wanted(4),
            ScalingPlan(submit=1),
        ),
        ([_node(n, Stage.IDLE, is_leaving=n == 0) for n in range(4)], _wanted(4), ScalingPlan()),
        # too many: the youngest of the queue first, then what is idle longest, never what works
        (
            [_node(0, Stage.QUEUED, 1), _node(1, Stage.QUEUED, 2), _node(2, Stage.BUSY)],
            _wanted(2),
            ScalingPlan(cancel=(1,)),
        ),
        (
            [_node(0, Stage.IDLE, 7), _node(1, Stage.IDLE, 3), _node(2, Stage.QUEUED)],
            _wanted(1),
            ScalingPlan(cancel=(2,), retire=(1,)),
        ),
        ([_node(0, Stage.BUSY), _node(1, Stage.STARTING)], _wanted(0), ScalingPlan()),
        # not at once
        ([_node(0, Stage.QUEUED)], _wanted(0, surplus_since_s=NOW_S - 1), ScalingPlan()),
        ([_node(0, Stage.IDLE, NOW_S - 1)], _wanted(0), ScalingPlan()),
        # its time is over: replaced, even when it works, but not when only it can do the work
        ([_node(0, Stage.BUSY, is_old=True)], _wanted(1), ScalingPlan(submit=1, retire=(0,))),
        ([_node(0, Stage.BUSY, is_old=True, is_bound=True)], _wanted(1), ScalingPlan()),
    ],
)
def test_moves(nodes: list[PoolNode], given: dict[str, Any], wanted: ScalingPlan):
    """pains 20: no submit-cancel loop by a demand that comes and goes."""
    assert plan(nodes, failures=Failures(), **given) == wanted


def test_jobs_that_die_are_followed_by_longer_and_longer_pauses_and_then_by_none():
    failures = Failures()
    for number in range(1, MAX_FAILURES + 1):
        assert not failures.are_too_many
        now_s = NOW_S + 10 * number
        failures = failures.after_failure(now_s - 1, now_s)
        assert (
            failures.after_failure(now_s - 2, now_s + 1) == failures
        )  # asked for before: the same fault
        pause_s = 2.0 ** (number - 1)
        assert (
            plan([], failures=failures, **_wanted(4, now_s=now_s + pause_s - 0.1)) == ScalingPlan()
        )
        again = plan([], failures=failures, **_wanted(4, now_s=now_s + pause_s))
        assert again.submit == (4 if number == 1 else 1)  # then one at a time, on trial
    on_trial = [_node(0, Stage.QUEUED)]
    assert plan(on_trial, failures=failures, **_wanted(4, now_s=NOW_S + 999)) == ScalingPlan()
    assert failures.are_too_many


def test_one_failure_is_forgiven_for_each_node_that_is_done_without():
    failures = Failures().after_failure(NOW_S, NOW_S)
    assert failures.after_blame() == failures
    again = failures.after_failure(NOW_S + 1, NOW_S + 1).after_blame()
    assert (again.count, again.num_forgiven) == (1, 1)
    assert again.after_presence(NOW_S + 2, NOW_S + 3, NOW_S + 3 + STABLE_S) == Failures()


def test_a_node_that_stays_ends_the_doubts_if_it_was_asked_for_after_them():
    failures = Failures().after_failure(NOW_S - 1, NOW_S)
    old = failures.after_presence(NOW_S - 5, NOW_S, NOW_S + 2 * STABLE_S)
    assert old.count == 1
    assert failures.after_presence(NOW_S + 1, NOW_S + 2, NOW_S + 3).count == 1
    assert failures.after_presence(NOW_S + 1, NOW_S + 2, NOW_S + 2 + STABLE_S) == Failures()


def test_jobs_that_are_cancelled_unused_again_and_again_are_a_fault_too():
    """pains 20."""
    failures = Failures()
    for _ in range(MAX_UNUSED):
        assert not failures.are_too_many
        failures = failures.after_unused()
    assert failures.are_too_many
    assert not failures.after_presence(0.0, NOW_S, NOW_S).are_too_many


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


def test_a_local_role_has_no_queue():
    with pytest.raises(ValidationError, match="leave `batch` out"):
        Role(batch={"partition": "gpu"})


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ({"host": "job"}, "for pools on a batch system"),
        ({"backend": "slurm", "kind": "gang", "host": "job"}, "for pools on a batch system"),
        ({"backend": "slurm", "host_options": ["--mem=2G"]}, "`host_options` are for `host: job`"),
        (
            {"backend": "slurm", "host": "job", "host_options": ["--time=1"]},
            "`host_options` must not hold",
        ),
    ],
)
def test_where_the_host_of_a_pool_runs(role: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        Role(**role)


def test_the_site_of_the_small_slurm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    site = load_site("slurm-dev")
    assert {role.batch.config for role in site.roles.values()} == {"/somewhere/slurm.conf"}
    assert (site.roles["cpu"].kind, site.roles["cpu"].nodes) == ("pool", 4)
    assert (site.roles["gpu"].nodes, site.roles["gpu"].ranks_per_node) == (2, 2)


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (FailureClass.PREEMPTED, StepState.PREEMPTED),
        (FailureClass.TIMED_OUT, StepState.TIMED_OUT),
        (FailureClass.USER_ERROR, StepState.FAILED),
        (FailureClass.OUT_OF_MEMORY, StepState.FAILED),
        (FailureClass.INFRASTRUCTURE, StepState.LOST),
        (FailureClass.LOST, StepState.LOST),
    ],
)
def test_a_lost_step_tells_its_cause(cause: FailureClass, state: StepState):
    """pains 31: the batch system's word, in front of what the files tell."""
    failure = Failure(failure_class=FailureClass.LOST, error="", message="no heartbeat")
    lost = StepResult(state=StepState.LOST, failure=failure, started_at=1.0, finished_at=2.0)
    told = blamed(lost, "Slurm job 7 ended", cause)
    assert (told.state, told.failure.failure_class) == (state, cause)
    assert told.failure.message == "Slurm job 7 ended; no heartbeat"
