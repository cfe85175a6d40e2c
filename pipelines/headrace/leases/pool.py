"""Dask clusters of pools on a batch system: a scheduler here, one job a node elsewhere."""

from __future__ import annotations

import asyncio

from headrace.leases.dashboard import LeaseScheduler
from headrace.leases.pool_jobs import PoolJobs
from headrace.leases.records import AvoidedNode, BadNodes, LeaseSpec, PoolRecord
from headrace.leases.scaler import Scaler
from headrace.leases.scheduler import open_scheduler
from headrace.storage.atomic import write_if_room, write_json, write_record
from headrace.storage.layout import LeaseFolder

_CLOSE_TIMEOUT_S = 15.0


class PoolCluster:
    """An open pool, as its host sees it.

    Args:
        folder: The lease.
        spec: What was asked for.
        jobs: The pool's jobs.
        scheduler: Its Dask scheduler.
        job_ids: Id of the host's own job, if it has one.
    """

    def __init__(
        self,
        folder: LeaseFolder,
        spec: LeaseSpec,
        jobs: PoolJobs,
        scheduler: LeaseScheduler,
        job_ids: tuple[str, ...],
    ) -> None:
        self._folder = folder
        self._scheduler = scheduler
        self._job_ids = job_ids
        self._avoids: tuple[AvoidedNode, ...] = ()
        self._scaler = Scaler(spec, jobs, scheduler, self._tell)
        self._scaling = asyncio.create_task(self._scaler.run())

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""
        return str(self._scheduler.address)

    @property
    def dashboard_url(self) -> str:
        """Address of the dashboard: on the host's machine only, for an SSH tunnel."""
        return self._scheduler.dashboard_url

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The host's own job, if it has one; those of the nodes come and go."""
        return self._job_ids

    def write_scheduler_file(self) -> None:
        """Write Dask's scheduler file into the lease folder."""
        write_json(self._folder.scheduler_file, self._scheduler.identity())

    def check(self) -> None:
        """Look whether there can be nodes; see `Cluster.check`.

        Raises:
            HeadraceError: There cannot.
        """
        if self._scaling.done():
            self._scaling.result()
            if self._scaler.failure is not None:
                raise self._scaler.failure

    async def close(self) -> None:
        """Submit nothing any more and close the scheduler; the nodes end with it."""
        self._scaling.cancel()
        await self._scaler.close()
        await asyncio.wait_for(self._scheduler.close(), _CLOSE_TIMEOUT_S)

    def _tell(self, record: PoolRecord) -> None:
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


async def open_pool(
    folder: LeaseFolder, spec: LeaseSpec, jobs: PoolJobs, job_ids: tuple[str, ...]
) -> PoolCluster:
    """Open a pool without nodes; called inside the host process.

    Side effects: sets Dask's configuration; writes key, certificate and scheduler file into the
    lease's folder.

    Raises:
        LeaseError: This machine has no such network interface.
    """
    scheduler = await open_scheduler(folder, spec)
    cluster = PoolCluster(folder, spec, jobs, scheduler, job_ids)
    cluster.write_scheduler_file()  # workers look for it as soon as there is a job
    return cluster
