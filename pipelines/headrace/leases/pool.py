"""Dask clusters of pools on a batch system: a scheduler here, one job a node elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_jobqueue.core import JobQueueCluster
from distributed.deploy.cluster import Cluster

from headrace.leases.dashboard import LeaseScheduler
from headrace.leases.jobqueue import SECTION, PoolJob
from headrace.leases.keys import make_keys
from headrace.leases.pool_jobs import NodeRequest, Queue
from headrace.leases.pool_loop import PoolLoop
from headrace.leases.records import AvoidedNode, BadNodes, LeaseSpec, PoolRecord
from headrace.leases.scheduler import address, configure
from headrace.storage.atomic import write_if_room, write_json, write_record
from headrace.storage.layout import LeaseFolder

_CLOSE_TIMEOUT_S = 15.0


class NodePool(JobQueueCluster):  # type: ignore[misc]
    """A dask-jobqueue cluster whose jobs come and go as its loop decides.

    Args:
        folder: The lease.
        spec: What was asked for.
        queue: Where its jobs wait.
    """

    job_cls = PoolJob

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec, queue: Queue) -> None:
        self._folder = folder
        self._queue = queue
        self._avoids: tuple[AvoidedNode, ...] = ()
        self._control = PoolLoop(folder, spec, self, queue.gate)
        self._running: asyncio.Task[None] | None = None
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

    @property
    def dashboard_url(self) -> str:
        """Address of the dashboard: on the host's machine only, for an SSH tunnel."""
        return str(self.scheduler.dashboard_url)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The host's own job, if it has one; those of the nodes come and go."""
        return self._queue.job_ids

    def write_scheduler_file(self) -> None:
        """Write Dask's scheduler file into the lease folder."""
        write_json(self._folder.scheduler_file, self.scheduler.identity())

    def check(self) -> None:
        """Look whether there can be nodes; see `Cluster.check`.

        Raises:
            HeadraceError: There cannot.
        """
        if self._running is not None and self._running.done():
            self._running.result()
            if self._control.failure is not None:
                raise self._control.failure

    async def add(self, request: NodeRequest) -> PoolJob:
        """Want one more node; its job is not submitted yet."""
        name = f"node-{request.number}"
        options = self._job_kwargs | self._options(request)
        self.worker_spec[name] = {"cls": self.job_cls, "options": options}
        await self._settle()
        job: PoolJob = self.workers[name]
        return job

    def _options(self, request: NodeRequest) -> dict[str, Any]:
        spec = self._queue.node_job(request)
        script = self._queue.gate.system.render(spec)
        return {"request": request, "spec": spec, "script": script}

    async def drop(self, job: PoolJob) -> None:
        """Want a node no more whose job has ended, or was never submitted."""
        self.worker_spec.pop(job.name, None)
        await self._settle()

    async def _settle(self) -> None:
        # SpecCluster shares this task between all who wait for it
        await asyncio.shield(self._correct_state())

    def _update_worker_status(self, op: str, message: Any) -> None:
        # a job may outlive its worker, whose name the next one gets; SpecCluster closes it by name
        Cluster._update_worker_status(self, op, message)  # noqa: SLF001

    async def _start(self) -> None:
        await super()._start()
        self.write_scheduler_file()  # workers look for it as soon as there is a job
        self._running = asyncio.create_task(self._control.run())

    async def _close(self) -> None:
        """Submit nothing any more and close the scheduler; the nodes end with it."""
        if self._running is not None:
            self._running.cancel()
            await self._control.close()
        await asyncio.wait_for(super()._close(), _CLOSE_TIMEOUT_S)

    def tell(self, record: PoolRecord) -> None:
        """Write how the jobs stand, for the user and the control side."""
        if self._folder.spec.exists():  # a folder that was removed is not made again
            if record.avoids != self._avoids:
                self._tell_bad_nodes(record.avoids)
            write_if_room(self._folder.pool, record)

    def _tell_bad_nodes(self, avoids: tuple[AvoidedNode, ...]) -> None:
        self._avoids = avoids
        if not avoids:
            self._folder.bad_nodes.unlink(missing_ok=True)
            return
        why = "; ".join(f"{each.node}: {each.why}" for each in avoids)
        bad = BadNodes(nodes=tuple(each.node for each in avoids), why=why)
        write_record(self._folder.bad_nodes, bad)


async def open_pool(folder: LeaseFolder, spec: LeaseSpec, queue: Queue) -> NodePool:
    """Open a pool without nodes; called inside the host process.

    Side effects: sets Dask's configuration; writes key, certificate and scheduler file into the
    lease's folder.

    Raises:
        LeaseError: This machine has no such network interface.
    """
    configure()
    cluster: NodePool = await NodePool(folder, spec, queue)
    return cluster
