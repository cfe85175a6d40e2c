"""Pools as dask-jobqueue clusters: a scheduler here, one job per node elsewhere.

SpecCluster starts and closes jobs under its lock, where waiting for a queue would block. So `start`
and `close` of a job only record what is wanted; the loop of the pool submits, polls and cancels.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from distributed.deploy.cluster import Cluster

from headrace.batch.job_records import JobState, JobStatus
from headrace.clusters.lease_machines import NodeRequest, gate, node_job
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.pool_job import SECTION, JobQueueCluster, PoolJob
from headrace.clusters.pool_loop import PoolLoop
from headrace.clusters.scheduler import LeaseScheduler, NodeTimes, address, configure, make_keys
from headrace.files.atomic import write_json
from headrace.files.layout import LeaseFolder

_CLOSE_TIMEOUT_S = 15.0


class NodePool(JobQueueCluster):  # type: ignore[misc]
    """A dask-jobqueue cluster whose loop submits and ends its jobs; see `OpenCluster`."""

    job_cls = PoolJob

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        self._folder = folder
        self._spec = spec
        self._gate = gate(folder, spec)
        self._loop_of_jobs = PoolLoop(folder, spec, self, self._gate)
        self._running: asyncio.Task[None] | None = None
        self._times = NodeTimes(folder, asked=self._submitted_at)
        host = address(spec.role.batch.interface)
        super().__init__(
            asynchronous=True,
            name=spec.lease_id,
            config_name=SECTION,
            silence_logs=False,
            security=make_keys(folder),
            scheduler_cls=LeaseScheduler,
            scheduler_options={"host": host, "port": 0, "protocol": "tls"},
            **self._options(NodeRequest(serial=1, number=0, time_limit_s=spec.role.lifetime_s)),
        )

    def check(self) -> None:
        """Raise if the pool can have no nodes."""
        if self._running is not None and self._running.done():
            self._running.result()
            if self._loop_of_jobs.failure is not None:
                raise self._loop_of_jobs.failure

    async def add(self, request: NodeRequest) -> PoolJob:
        """Add one node; its job is not submitted yet."""
        name = f"node-{request.number}"
        options = self._job_kwargs | self._options(request)
        self.worker_spec[name] = {"cls": self.job_cls, "options": options}
        await self._apply_spec()
        job: PoolJob = self.workers[name]
        return job

    def note(self, job: PoolJob, status: JobStatus) -> None:
        """Record the reported state of a job, and when its machine began to cost."""
        job.set_status(status)
        if status.state is JobState.RUNNING:
            self._times.begin(str(job.name), status.running_since or time.time())

    async def drop(self, job: PoolJob) -> None:
        """Remove a node whose job has ended, or was never submitted."""
        self._times.end(str(job.name))
        self.worker_spec.pop(job.name, None)
        await self._apply_spec()

    def _submitted_at(self, name: str) -> float | None:
        job = self.workers.get(name)
        return None if job is None or job.record is None else float(job.record.submitted_at)

    def _options(self, request: NodeRequest) -> dict[str, Any]:
        spec = node_job(self._folder, self._spec, request)
        return {"request": request, "spec": spec, "script": self._gate.system.render(spec)}

    async def _apply_spec(self) -> None:
        # SpecCluster shares this task between all that wait for it
        await asyncio.shield(self._correct_state())

    def _update_worker_status(self, op: str, message: Any) -> None:
        # a job may outlive its worker; SpecCluster closes it by name, which the next node reuses
        Cluster._update_worker_status(self, op, message)  # noqa: SLF001

    async def _start(self) -> None:
        await super()._start()
        self.scheduler.add_plugin(self._times)
        # workers read it as soon as a job runs
        write_json(self._folder.scheduler_file, self.scheduler.identity())
        self._running = asyncio.create_task(self._loop_of_jobs.run())

    async def _close(self) -> None:
        """Stop submitting and close the scheduler; the nodes end with it."""
        if self._running is not None:
            self._running.cancel()
            await self._loop_of_jobs.close()
        await asyncio.wait_for(super()._close(), _CLOSE_TIMEOUT_S)


async def open_pool(folder: LeaseFolder, spec: LeaseSpec) -> NodePool:
    """Open a pool without nodes, in its host process; writes the lease's keys, scheduler file."""
    configure(spec)
    cluster: NodePool = await NodePool(folder, spec)
    return cluster
