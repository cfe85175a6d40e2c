"""Dask clusters of the local backend, opened inside the host process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import dask
from distributed import LocalCluster, Nanny, Scheduler
from distributed.core import Status
from distributed.deploy.adaptive import Adaptive

from headrace.errors import LeaseError
from headrace.leases.dashboard import LeaseScheduler
from headrace.leases.keys import make_keys
from headrace.leases.records import LeaseSpec
from headrace.leases.resources import DEMAND, NODE, SLOT
from headrace.recipe.site import Role
from headrace.storage.atomic import write_json
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_POLL_S = 0.1
_ADAPT_EVERY_S = 0.5
_KEEP_EVERY_S = 1.0
_CLOSE_TIMEOUT_S = 15.0

CONFIG: dict[str, Any] = {
    # training starts processes of its own below a worker
    "distributed.worker.daemon": False,
    # work whose worker died is tried again by those who know how, not blindly
    "distributed.scheduler.allowed-failures": 0,
    # a task that holds the GIL for long is no dead worker
    "distributed.scheduler.worker-ttl": None,
    # a nanny whose worker is not back by then is given up, and replaced by `keep_nodes`
    "distributed.deploy.lost-worker-timeout": "10s",
    "distributed.admin.tick.limit": "60s",
    "distributed.comm.timeouts.connect": "30s",
    # a worker has no pages: nobody looks at them, and every account of its machine could
    "distributed.worker.http.routes": [],
}
"""Dask's settings in the host and in all workers."""


class NodeCluster(LocalCluster):  # type: ignore[misc]
    """A LocalCluster whose workers are called node-0, node-1, …; freed names are taken again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler_spec["cls"] = LeaseScheduler

    def new_worker_spec(self) -> dict[str, Any]:
        """Name and options of the next worker."""
        names = (f"node-{number}" for number in itertools.count())
        return {next(name for name in names if name not in self.worker_spec): self.new_spec}


class DemandAdaptive(Adaptive):  # type: ignore[misc]
    """Grows a pool to what its connected clients ask for, even before they submit anything.

    Dask alone guesses from the durations of tasks, which are not known at first.
    """

    async def target(self) -> int:
        """Workers wanted now."""
        return max(int(await super().target()), demand(self.cluster.scheduler))


def demand(scheduler: Scheduler) -> int:
    """Nodes that the connected clients ask for together; those of gone clients do not count."""
    asked = scheduler.task_metadata.get(DEMAND, {})
    return sum(int(count) for client, count in asked.items() if client in scheduler.clients)


class OpenCluster:
    """An open local cluster."""

    def __init__(self, cluster: NodeCluster, folder: LeaseFolder) -> None:
        self._cluster = cluster
        self._folder = folder
        self._keeping = asyncio.create_task(keep_nodes(cluster))

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""
        return str(self._cluster.scheduler_address)

    @property
    def dashboard_url(self) -> str:
        """Address of the dashboard."""
        return str(self._cluster.scheduler.dashboard_url)

    @property
    def job_ids(self) -> tuple[str, ...]:
        """None: nobody outside knows these processes."""
        return ()

    def write_scheduler_file(self) -> None:
        """Write Dask's scheduler file into the lease folder."""
        write_json(self._folder.scheduler_file, self._cluster.scheduler.identity())

    def check(self) -> None:
        """Nothing: this machine always has room for another process."""

    async def close(self) -> None:
        """End all workers and the scheduler."""
        self._keeping.cancel()
        await asyncio.wait_for(self._cluster.close(), _CLOSE_TIMEOUT_S)
        shutil.rmtree(_scratch(self._folder), ignore_errors=True)


async def open_local(folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
    """Open a cluster on this machine.

    Side effects: writes key and certificate into the lease's folder; sets Dask's configuration and
    the environment of this process, both of which the workers take over.

    Raises:
        LeaseError: Not all nodes of a gang were there within the role's `start_timeout`.
    """
    role = spec.role
    dask.config.set(CONFIG)
    logging.getLogger("distributed").setLevel(logging.WARNING)  # its import sets another level
    os.environ.update(worker_environment(role))
    cluster = await NodeCluster(security=make_keys(folder), **_options(role, _scratch(folder)))
    try:
        if role.kind == "gang":
            cluster.scale(role.nodes)
            await _wait_for_nodes(cluster, role)
        else:
            cluster.adapt(
                Adaptive=DemandAdaptive,
                minimum=0,
                maximum=role.nodes,
                interval=_ADAPT_EVERY_S,
                wait_count=max(1, round(role.keep_nodes / _ADAPT_EVERY_S)),
            )
    except BaseException:
        await cluster.close()
        raise
    return OpenCluster(cluster, folder)


async def keep_nodes(cluster: NodeCluster) -> None:
    """Replace nodes that Dask has given up, for ever.

    A nanny restarts its worker. When that takes too long, as on a busy machine, the cluster closes
    the nanny and stays one worker short.
    """
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        gone = [name for name in cluster.worker_spec if _is_gone(cluster.workers.get(name))]
        if gone:
            (error,) = await asyncio.gather(_renew(cluster, gone), return_exceptions=True)
            if error is not None:
                logger.warning("%s could not be replaced, trying again: %r", gone, error)


async def _renew(cluster: NodeCluster, gone: list[str]) -> None:
    count = len(cluster.worker_spec)
    failed = [name for name in gone if name in cluster.workers]
    if failed:
        await cluster.scale_down(failed)
    cluster.scale(count)
    await cluster  # opens what is asked for and not there, or is being opened already


def _is_gone(nanny: Nanny | None) -> bool:
    return nanny is None or nanny.status in (Status.closed, Status.failed)


def worker_environment(role: Role) -> dict[str, str]:
    """Environment variables of workers and ranks; the role's own win.

    Threads of numeric libraries are always named: Dask would set them to 1 otherwise.
    """
    threads = str(role.threads_per_rank)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {**dict.fromkeys(names, threads), **role.env}


def _options(role: Role, scratch: Path) -> dict[str, Any]:
    return {
        "n_workers": 0,
        # one thread more than there is work for, so that short calls run on a held node
        "threads_per_worker": role.threads_per_node + 1,
        "processes": True,
        "host": _HOST,
        "scheduler_port": 0,
        "memory_limit": 0,
        "resources": {NODE: 1, SLOT: role.threads_per_node},
        "local_directory": str(scratch),
        "preload": ["headrace.leases.preload"],
        "silence_logs": logging.WARNING,
        "asynchronous": True,
    }


def _scratch(folder: LeaseFolder) -> Path:
    return folder.path / "scratch"


async def _wait_for_nodes(cluster: NodeCluster, role: Role) -> None:
    deadline = time.monotonic() + role.start_timeout
    while (num_here := len(cluster.scheduler.workers)) < role.nodes:
        if time.monotonic() > deadline:
            raise LeaseError(
                f"{num_here} of {role.nodes} nodes were there after {role.start_timeout:g} s",
                "Raise the role's start_timeout, or ask for fewer nodes.",
            )
        await asyncio.sleep(_POLL_S)
