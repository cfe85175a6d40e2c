"""The loop of a pool on a batch system: observe, decide (`pool_policy`), act, publish."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from headrace.batch.job_records import JobState, JobStatus, expected_start, view_of, waits_for
from headrace.batch.queue_state import job_statuses
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters.lease_machines import NodeRequest, last_words, record_file, write_pool
from headrace.clusters.lease_records import LeaseSpec, PoolJobView, PoolRecord
from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.node_failures import FailureTracker
from headrace.clusters.pool_job import PoolJob
from headrace.clusters.pool_policy import ScalingPlan, Stage, plan, staying_nodes
from headrace.clusters.scheduler import LEFT, WAITS, demand
from headrace.errors import BatchError, HeadraceError, JobRefusedError, QueueFullError
from headrace.files.layout import LeaseFolder

logger = logging.getLogger(__name__)

_TICK_S = 0.5
_LEAVE_S = 30.0
_SILENCE_S = 30.0
_LIMIT_S = 2.0


class Pool(Protocol):
    """The interface of a pool for its loop; see `NodePool`."""

    scheduler: Any
    workers: dict[Any, PoolJob]

    async def add(self, request: NodeRequest) -> PoolJob:
        """Add one node; its job is not submitted yet."""

    def note(self, job: PoolJob, status: JobStatus) -> None:
        """Record the reported state of a job, and when its machine began to cost."""

    async def drop(self, job: PoolJob) -> None:
        """Remove a node whose job has ended, or was never submitted."""


class PoolLoop:
    """Keeps a pool at the size that its clients need."""

    def __init__(
        self, folder: LeaseFolder, spec: LeaseSpec, pool: Pool, gate: SubmissionGate
    ) -> None:
        self._folder = folder
        self._role = spec.role
        self._pool = pool
        self._gate = gate
        powerless = f"{gate.system.name} cannot leave nodes out"
        can_leave_out = self._role.leaves_nodes_out
        self._tracker = FailureTracker(spec.exclude, "" if can_leave_out else powerless)
        self._wanted = 0
        self._num_submitted = 0
        self._surplus_since_s: float | None = None
        self._paused_until_s = 0.0
        self._paused_for = ""
        self._submitting: asyncio.Task[None] | None = None
        self._is_closing = False
        self._started_s = time.monotonic()
        self._published = PoolRecord()
        self._first_node_at: float | None = None

    @property
    def failure(self) -> HeadraceError | None:
        """Why the pool can have no nodes; None if it can."""
        return self._tracker.failure

    @property
    def _jobs(self) -> dict[int, PoolJob]:
        """Submitted jobs that have not ended, by the numbers of their nodes, in order."""
        jobs = {job.request.number: job for job in self._pool.workers.values() if job.record}
        return dict(sorted(jobs.items()))

    async def run(self) -> None:
        """Run until the pool fails."""
        while self.failure is None:
            await self._observe()
            await self._fail_if_exhausted()
            if self.failure is None:
                await self._act(self._decide())
            await self._publish()
            await asyncio.sleep(_TICK_S)
        await self._publish()  # includes a refused submission

    async def close(self) -> None:
        """Let no more jobs start; running ones end with the scheduler."""
        self._is_closing = True
        if self._submitting is not None:
            with suppress(HeadraceError):
                await self._submitting
        # a cancellation that fails is retried when the lease's leftovers are ended
        await self._cancel([job for job in self._jobs.values() if job.stage is Stage.QUEUED])

    async def _observe(self) -> None:
        jobs = list(self._jobs.values())
        records = [job.record for job in jobs if job.record is not None]
        gate = self._gate
        found = await asyncio.to_thread(
            job_statuses, gate.system, gate.leases, records, gate.batch.poll
        )
        workers = {str(state.name): state for state in self._pool.scheduler.workers.values()}
        now_s = time.monotonic()
        for job in jobs:
            self._pool.note(job, found[job.job_id])
            worker = workers.get(job.name)
            if job.job_status.state.is_final:
                await self._end(job, worker)
                continue
            job.set_worker(worker, now_s)
            if worker is not None:
                self._first_node_at = self._first_node_at or time.time()
                self._tracker.record_presence(job, now_s)
        await self._end_overdue(now_s)

    async def _end(self, job: PoolJob, worker: Any) -> None:
        why = self._why(job)
        logger.info("%s: %s", job.name, why)
        if job.leaving_s is None or job.job_status.state is JobState.PREEMPTED:
            self._tracker.record_failure(job, why, last_words(self._folder, job.request.serial))
        if worker is not None:  # its node was lost; its name is used again
            remove = self._pool.scheduler.remove_worker
            await remove(worker.address, stimulus_id="headrace-job-ended")
        record_file(self._folder, job.request.serial).unlink(missing_ok=True)
        await self._pool.drop(job)

    async def _end_overdue(self, now_s: float) -> None:
        for job in self._jobs.values():
            what = job.overdue(self._role, now_s)
            if not what:
                continue
            logger.warning("The job of %s %s; cancelling it", job.name, what)
            if job.leaving_s is None:
                self._tracker.record_failure(job, f"{self._why(job)}; it {what}")
            await self._cancel([job])

    async def _fail_if_exhausted(self) -> None:
        jobs = self._jobs.values()
        if any(job.stage.is_here for job in jobs):
            return
        for job in [each for each in jobs if each.never_starts]:
            if not self._tracker.may_start_otherwise(job, self._why(job)):
                return
            await self._cancel([job])
        await self._cancel(self._tracker.find_stuck(jobs, time.monotonic()))
        self._tracker.fail_if_exhausted()

    def _decide(self) -> ScalingPlan:
        now_s = time.monotonic()
        nodes = [job.node(now_s) for job in self._jobs.values()]
        asked = max(int(self._pool.scheduler.adaptive_target()), demand(self._pool.scheduler))
        self._wanted = min(asked, self._role.nodes)
        if self._wanted >= len(staying_nodes(nodes)):
            self._surplus_since_s = None
        elif self._surplus_since_s is None:
            self._surplus_since_s = now_s
        found = plan(
            nodes,
            self._wanted,
            self._role,
            self._tracker.failures,
            now_s=now_s,
            surplus_since_s=self._surplus_since_s,
        )
        return found if now_s >= self._paused_until_s else replace(found, submit=0)

    async def _act(self, found: ScalingPlan) -> None:
        jobs = self._jobs
        if found.cancel:
            self._tracker.failures = self._tracker.failures.after_unused()
            await self._cancel([jobs[number] for number in found.cancel])
        if found.retire:
            await self._retire([jobs[number] for number in found.retire])
        if self._submitting is not None and self._submitting.done():
            self._submitting.result()
            self._submitting = None
        if found.submit and self._submitting is None:
            self._submitting = asyncio.create_task(self._submit(found.submit))

    async def _retire(self, jobs: Sequence[PoolJob]) -> None:
        for job in jobs:
            job.leaving_s = time.monotonic()
        names = [job.name for job in jobs]
        logger.info("Retiring %s", ", ".join(names))
        retired = self._pool.scheduler.retire_workers(names=names, close_workers=True, remove=True)
        with suppress(*TIMED_OUT):
            await asyncio.wait_for(retired, _LEAVE_S)
        left = {str(worker.name): worker for worker in self._pool.scheduler.workers.values()}
        for job in jobs:
            worker = left.get(job.name)
            if worker is None:
                continue
            if not job.node(time.monotonic()).is_old:
                job.leaving_s = None  # it holds data that no other node can take
                continue
            logger.info("%s holds data that no other node can take; it is made again", job.name)
            await self._pool.scheduler.remove_worker(
                worker.address, stimulus_id="headrace-node-is-old", expected=True
            )

    async def _cancel(self, jobs: Sequence[PoolJob]) -> None:
        if not jobs:
            return
        for job in jobs:
            job.leaving_s = time.monotonic()
        try:
            await asyncio.to_thread(self._gate.system.cancel, [job.job_id for job in jobs])
        except BatchError as error:  # they become overdue, and are cancelled again
            logger.warning("%s", error.what)

    async def _submit(self, count: int) -> None:
        try:
            for _ in range(count):
                if not self._is_closing:
                    await self._submit_one()
        except JobRefusedError as error:
            self._tracker.refuse(error)
        except QueueFullError as error:
            self._pause(error.what, _LIMIT_S)
        except BatchError as error:
            logger.warning("%s; trying again later", error.what)
            self._pause(error.what, _SILENCE_S)

    def _pause(self, why: str, seconds: float) -> None:
        self._paused_for = why
        self._paused_until_s = time.monotonic() + seconds

    async def _submit_one(self) -> None:
        now_s = time.monotonic()
        # after a submission without a clear answer the same job is submitted again
        unclear = [job for job in self._pool.workers.values() if job.record is None]
        job = unclear[0] if unclear else await self._pool.add(self._request(now_s))
        file = record_file(self._folder, job.request.serial)
        try:
            record = await asyncio.to_thread(self._gate.submit, job.spec, file)
        except (JobRefusedError, QueueFullError) as error:
            await self._pool.drop(job)
            if not job.request.exclude or isinstance(error, QueueFullError):
                raise
            self._tracker.take_all_nodes(error.what)
            return
        self._num_submitted += 1
        job.set_submitted(record, now_s)
        logger.info("%s: submitted as job %s", job.name, job.job_id)

    def _request(self, now_s: float) -> NodeRequest:
        free = next(number for number in itertools.count() if number not in self._jobs)
        left_s = self._started_s + self._role.lifetime_s - now_s
        life_s = max(min(self._role.node_lifetime or left_s, left_s), 1.0)
        self._tracker.forgive(now_s)
        return NodeRequest(
            serial=self._num_submitted + 1,
            number=free,
            time_limit_s=life_s,
            exclude=self._tracker.avoidance.nodes,
        )

    async def _publish(self) -> None:
        """Publish the state of the jobs to the scheduler's clients, users and the control side."""
        record, before = self._record(), self._published
        self._pool.scheduler.task_metadata |= {WAITS: record.waits_for, LEFT: self._left_s()}
        if record != before:
            self._published = record
            await asyncio.to_thread(write_pool, self._folder, record, before.avoids)

    def _left_s(self) -> dict[str, float]:
        """Return the seconds until nodes end whose time is over before the lease's, by name."""
        jobs, life_s, now_s = self._jobs.values(), self._role.node_lifetime, time.monotonic()
        short = [job for job in jobs if job.is_taken or job.request.time_limit_s == life_s]
        return {str(job.name): job.left_s(now_s) for job in short}

    def _record(self) -> PoolRecord:
        avoidance = self._tracker.avoidance
        return PoolRecord(
            jobs=tuple(view(job, self._gate.system.name) for job in self._jobs.values()),
            waits_for=lack(
                list(self._jobs.values()),
                self._wanted,
                trouble=self._trouble(),
                avoided=avoidance.nodes,
                system=self._gate.system.name,
            ),
            starts_at=expected_start(job.job_status for job in self._jobs.values()),
            first_node_at=self._first_node_at,
            ended=self._tracker.ended,
            avoids=avoidance.avoided,
            takes_all=avoidance.lifted if avoidance.blamed else "",
            failure=self._tracker.view,
        )

    def _trouble(self) -> str:
        """Return why no job waits in the queue; empty if nothing is wrong."""
        if self._submitting is not None:
            return "a job is being submitted"
        if time.monotonic() < self._paused_until_s:
            return self._paused_for
        return self._tracker.last_end.partition("\n")[0] if self._tracker.failures.count else ""

    def _why(self, job: PoolJob) -> str:
        return view_of(job.job_status, self._gate.system.name).why


def view(job: PoolJob, system: str) -> PoolJobView:
    """Return the state of a node's job; `system` is the name of the batch system."""
    return PoolJobView(
        node=str(job.name),
        job_id=job.job_id,
        stage="leaving" if job.leaving_s is not None else job.stage.value,
        why=view_of(job.job_status, system).why,
    )


def lack(
    jobs: Sequence[PoolJob], wanted: int, *, trouble: str, avoided: Sequence[str], system: str
) -> str:
    """Return why there are fewer nodes than `wanted`, as `2 of 4 nodes; 2 pending: Resources`.

    `trouble` is why no job waits in the queue, if something is wrong.
    """
    num_here = sum(1 for job in jobs if job.stage.is_here)
    queued = [job for job in jobs if job.stage is Stage.QUEUED]
    if num_here >= wanted or not (queued or trouble):
        return ""
    what = trouble
    if queued:
        details = waits_for(queued[0].job_status, system)
        what = f"{len(queued)} pending{f': {details}' if details else ''}"
    without = f" (without {', '.join(avoided)}, where jobs failed)" if avoided else ""
    return f"{num_here} of {wanted} nodes; {what}{without}"
