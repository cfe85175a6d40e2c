"""Dask clusters of the local backend, opened inside the host process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import time
from pathlib import Path
from typing import Any

from distributed import LocalCluster, Nanny
from distributed.core import Status
from distributed.deploy.adaptive import Adaptive

from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.scheduler import (
    LOOPBACK,
    LeaseScheduler,
    NodeTimes,
    demand,
    make_keys,
    prepare,
    worker_options,
)
from headrace.errors import LeaseError
from headrace.files.atomic import write_json
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_ADAPT_EVERY_S = 0.5
_KEEP_EVERY_S = 1.0
_CLOSE_TIMEOUT_S = 15.0


class _NodeCluster(LocalCluster):  # type: ignore[misc]
    """A LocalCluster whose workers are called node-0, node-1, …; freed names are taken again."""

    job_ids = ()

    def __init__(self, scratch: Path, **options: Any) -> None:
        super().__init__(
            n_workers=0,
            processes=True,
            host=LOOPBACK,
            scheduler_port=0,
            local_directory=str(scratch),
            asynchronous=True,
            **options,
        )
        self.scheduler_spec["cls"] = LeaseScheduler
        self.keeping: asyncio.Task[None] | None = None
        self._scratch = scratch

    @property
    def dashboard_url(self) -> str:
        return str(self.scheduler.dashboard_url)

    def check(self) -> None:
        """This machine always has room for another process."""

    async def _close(self) -> None:
        if self.keeping is not None:
            self.keeping.cancel()
        await asyncio.wait_for(super()._close(), _CLOSE_TIMEOUT_S)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def new_worker_spec(self) -> dict[str, Any]:
        names = (f"node-{number}" for number in itertools.count())
        return {next(name for name in names if name not in self.worker_spec): self.new_spec}


class _DemandAdaptive(Adaptive):  # type: ignore[misc]
    """Grows a pool to what its connected clients ask for, even before they submit anything.

    Dask alone guesses from the durations of tasks, which are not known at first.
    """

    async def target(self) -> int:
        return max(int(await super().target()), demand(self.cluster.scheduler))


async def open_local(folder: LeaseFolder, spec: LeaseSpec) -> _NodeCluster:
    """Open a cluster on this machine.

    Side effects: writes key and certificate into the lease's folder; sets Dask's configuration and
    the environment of this process, both of which the workers take over.
    """
    role = spec.role
    prepare(folder, role)
    keys, scratch, since = make_keys(folder), folder.path / "scratch", time.time()
    options = worker_options(role, "threads_per_worker", spec.preload)
    cluster: _NodeCluster = await _NodeCluster(scratch, security=keys, **options)
    names = [f"node-{number}" for number in range(role.nodes if role.kind == "gang" else 0)]
    cluster.scheduler.add_plugin(NodeTimes(folder, names, since))
    try:
        if role.kind == "gang":
            cluster.scale(role.nodes)
            await _wait_for_nodes(cluster, role)
        else:
            cluster.adapt(
                Adaptive=_DemandAdaptive,
                minimum=0,
                maximum=role.nodes,
                interval=_ADAPT_EVERY_S,
                wait_count=max(1, round(role.keep_nodes / _ADAPT_EVERY_S)),
            )
    except BaseException:
        await cluster.close()
        raise
    write_json(folder.scheduler_file, cluster.scheduler.identity())
    cluster.keeping = asyncio.create_task(_keep_nodes(cluster))
    return cluster


async def _wait_for_nodes(cluster: _NodeCluster, role: Role) -> None:
    deadline = time.monotonic() + role.start_timeout
    while (num_here := len(cluster.scheduler.workers)) < role.nodes:
        if time.monotonic() > deadline:
            raise LeaseError(
                f"{num_here} of {role.nodes} nodes were there after {role.start_timeout:g} s",
                "Raise the role's start_timeout, or ask for fewer nodes.",
            )
        await asyncio.sleep(_POLL_S)


async def _keep_nodes(cluster: _NodeCluster) -> None:
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


async def _renew(cluster: _NodeCluster, gone: list[str]) -> None:
    count = len(cluster.worker_spec)
    failed = [name for name in gone if name in cluster.workers]
    if failed:
        await cluster.scale_down(failed)
    cluster.scale(count)
    await cluster  # opens what is asked for and not there, or is being opened already


def _is_gone(nanny: Nanny | None) -> bool:
    return nanny is None or nanny.status in (Status.closed, Status.failed)
