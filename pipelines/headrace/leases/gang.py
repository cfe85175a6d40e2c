"""Dask clusters of a gang: scheduler and first node in the host process, one member a node."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from distributed import Nanny

from headrace.batch.systems import system_of
from headrace.errors import LeaseError
from headrace.leases import preflight
from headrace.leases.client import GAVE_UP, request_close
from headrace.leases.contained import ContainedNode
from headrace.leases.dashboard import LeaseScheduler
from headrace.leases.encryption import security
from headrace.leases.records import BadNodes, LeaseSpec
from headrace.leases.resources import NODE, SLOT
from headrace.leases.scheduler import address, open_scheduler, prepare
from headrace.leases.timeouts import TIMED_OUT
from headrace.recipe.site import Role
from headrace.storage.atomic import write_json, write_record
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_CLOSE_TIMEOUT_S = 15.0
_DEATH_TIMEOUT_S = 30.0


class GangCluster:
    """An open gang, as its host sees it."""

    def __init__(self, folder: LeaseFolder, job_id: str, scheduler: LeaseScheduler) -> None:
        self._folder = folder
        self._job_id = job_id
        self._scheduler = scheduler
        self._first: GangNode | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._reports: tuple[preflight.NodeReport, ...] = ()

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""
        return str(self._scheduler.address)

    @property
    def dashboard_url(self) -> str:
        """Address of the dashboard: on the first node only, for an SSH tunnel."""
        return self._scheduler.dashboard_url

    @property
    def job_ids(self) -> tuple[str, ...]:
        """The one job that holds all nodes."""
        return (self._job_id,)

    def write_scheduler_file(self) -> None:
        """Write Dask's scheduler file into the lease folder; members wait for it."""
        write_json(self._folder.scheduler_file, self._scheduler.identity())

    async def wait_for_nodes(self, spec: LeaseSpec) -> None:
        """Start the first node and wait for all.

        Raises:
            LeaseError: Not all were there within the role's `start_timeout`, or some are bad.
        """
        role = spec.role
        try:
            await asyncio.wait_for(self._join(spec), role.start_timeout)
        except TIMED_OUT as error:
            self._note_missing(role)
            raise LeaseError(
                f"{len(self._scheduler.workers)} of {role.nodes} nodes were there "
                f"after {role.start_timeout:g} s{self._names()}",
                "Raise the role's start_timeout, or ask for fewer nodes.",
            ) from error

    async def _join(self, spec: LeaseSpec) -> None:
        examining = asyncio.create_task(
            asyncio.to_thread(preflight.examine, self._folder, spec, index=0)
        )
        await self._until(examining.done)
        preflight.require_good(self._folder, [examining.result()])
        self._first = await open_node(self._folder, spec, 0, self.scheduler_address)
        self._keeping = asyncio.create_task(self._first.keep())
        await self._until(lambda: len(self._scheduler.workers) >= spec.role.nodes)
        preflight.require_good(self._folder, self._with_clocks())

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait; a node that reports something bad ends it."""
        look_s, pauses_s = 0.0, preflight.pauses_s()
        while not is_so():
            if self._keeping is not None and self._keeping.done():
                self._keeping.result()
            if time.monotonic() > look_s:
                look_s = time.monotonic() + next(pauses_s)
                self._reports = preflight.reports(self._folder, self._reports)
                preflight.require_good(self._folder, self._reports)
            await asyncio.sleep(_POLL_S)

    def _with_clocks(self) -> list[preflight.NodeReport]:
        """What the nodes reported, with how far their clocks are from this one."""
        states = self._scheduler.workers.values()
        skews_s = {str(each.name): float(each.time_delay) for each in states}
        found = preflight.reports(self._folder, self._reports)
        return [preflight.skewed(each, skews_s.get(name_of(each.index), 0.0)) for each in found]

    def _names(self) -> str:
        """Which nodes are not there that have been heard of, for the user."""
        here = {str(each.name) for each in self._scheduler.workers.values()}
        found = preflight.reports(self._folder)
        late = [each.node for each in found if name_of(each.index) not in here]
        return f"; {', '.join(late)} reported and did not join" if late else ""

    def check(self) -> None:
        """Nothing: Slurm ends the whole job when a node is lost."""

    def _note_missing(self, role: Role) -> None:
        """Name the nodes whose workers have not come, for the next lease to do without them."""
        here = {str(worker.name) for worker in self._scheduler.workers.values()}
        nodes = system_of(role).job_nodes(os.environ)
        missing = tuple(name for i, name in enumerate(nodes) if name_of(i) not in here)
        if missing:
            why = f"no worker came from {', '.join(missing)} in {role.start_timeout:g} s"
            write_record(self._folder.bad_nodes, BadNodes(nodes=missing, why=why))

    async def close(self) -> None:
        """End all workers and the scheduler; members end with it."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._first is not None:
            await self._first.close()
        await asyncio.wait_for(self._scheduler.close(), _CLOSE_TIMEOUT_S)


class GangNode(Protocol):
    """The worker of a node, wherever it runs."""

    async def keep(self) -> None:
        """Replace it when it dies, until the lease closes."""

    async def close(self) -> None:
        """End it."""


class NodeWorker:
    """The worker of this node, with the nanny that starts it again when it dies.

    Args:
        folder: The lease.
        spec: What was asked for.
        index: Place of this node in the gang, from 0.
        scheduler_address: Where to join.
    """

    def __init__(
        self, folder: LeaseFolder, spec: LeaseSpec, index: int, scheduler_address: str
    ) -> None:
        self._folder = folder
        self._scheduler_address = scheduler_address
        # sockets and spilled data belong on the node's own disk
        self._scratch = Path(tempfile.mkdtemp(prefix=f"headrace-{folder.lease_id}-"))
        self._options = _options(folder, spec, index, self._scratch)
        self._nanny: Nanny | None = None

    @classmethod
    async def open(
        cls, folder: LeaseFolder, spec: LeaseSpec, index: int, scheduler_address: str
    ) -> NodeWorker:
        """Start the worker of a node and wait until it has joined; see the class."""
        worker = cls(folder, spec, index, scheduler_address)
        try:
            await worker._start()
        except BaseException:
            try:
                await worker.close()
            except Exception:  # Dask asserts when it closes what has not started; why is told above
                logger.exception("The worker of this node could not be closed in order")
            raise
        return worker

    async def keep(self) -> None:
        """Replace a nanny that gave its worker up, until the lease closes."""
        while self._nanny is not None:
            await self._nanny.finished()
            if self._folder.close.exists() or not self._folder.spec.exists():
                return
            logger.warning("The worker of this node did not come back; starting another")
            await self._start()

    async def finished(self) -> None:
        """Wait until the worker has ended for good: it was sent away, or its host has gone."""
        if self._nanny is not None:
            await self._nanny.finished()

    async def close(self) -> None:
        """End the worker."""
        try:
            if self._nanny is not None:
                closing = self._nanny.close(timeout=_CLOSE_TIMEOUT_S)
                await asyncio.wait_for(closing, 2 * _CLOSE_TIMEOUT_S)
        finally:
            shutil.rmtree(self._scratch, ignore_errors=True)

    async def _start(self) -> None:
        self._nanny = Nanny(self._scheduler_address, **self._options)
        await self._nanny


async def open_node(
    folder: LeaseFolder, spec: LeaseSpec, index: int, scheduler_address: str
) -> GangNode:
    """Start the worker of a node, in the site's container if there is one; see `NodeWorker`."""
    if spec.role.batch.container is not None:
        return await ContainedNode.open(folder, spec, index)
    return await NodeWorker.open(folder, spec, index, scheduler_address)


def name_of(index: int) -> str:
    """Name of the worker of the node at that place of the gang, from 0."""
    return f"node-{index}"


async def open_gang(folder: LeaseFolder, spec: LeaseSpec, job_id: str) -> GangCluster:
    """Open a gang; called in the first task of its job.

    Side effects: sets Dask's configuration and the environment of this process, both of which
    the worker takes over; writes key, certificate and scheduler file into the lease's folder.

    Raises:
        LeaseError: Not all nodes were there within the role's `start_timeout`.
    """
    prepare(spec)
    scheduler = await open_scheduler(folder, spec)
    cluster = GangCluster(folder, job_id, scheduler)
    try:
        if spec.role.batch.preflight == "full":
            preflight.offer_meeting(folder, address(spec.role.batch.interface))
        cluster.write_scheduler_file()
        await cluster.wait_for_nodes(spec)
    except BaseException:
        if folder.spec.exists():
            request_close(folder, GAVE_UP)  # members look at this
        await cluster.close()
        raise
    return cluster


def _options(folder: LeaseFolder, spec: LeaseSpec, index: int, scratch: Path) -> dict[str, Any]:
    role = spec.role
    return {
        "name": name_of(index),
        "host": address(role.batch.interface),
        # one thread more than there is work for, so that short calls run on a held node
        "nthreads": role.threads_per_node + 1,
        "memory_limit": 0,
        "resources": {NODE: 1, SLOT: role.threads_per_node},
        "local_directory": str(scratch),
        "preload": ["headrace.leases.preload"],
        "dashboard": False,
        "security": security(folder),
        "protocol": "tls",
        "death_timeout": _DEATH_TIMEOUT_S,
        "silence_logs": logging.WARNING,
    }
