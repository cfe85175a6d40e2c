"""Dask clusters of the local backend, opened inside the host process."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from distributed import SpecCluster, Worker
from distributed.deploy.adaptive import Adaptive
from distributed.deploy.spec import ProcessInterface

from headrace.clusters import lease_client
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.local import IMPORTED
from headrace.clusters.scheduler import (
    LOOPBACK,
    THREADS,
    LeaseScheduler,
    NodeTimes,
    configure,
    demand,
    make_keys,
    prepare,
    worker_options,
)
from headrace.errors import LeaseError
from headrace.files.atomic import write_json
from headrace.files.layout import LeaseFolder
from headrace.processes.children import Child, Process
from headrace.processes.fork_server import ForkServers
from headrace.processes.working_folder import python_module
from headrace.recipe.site import Role

logger = logging.getLogger(__name__)

_MODULE = "headrace.clusters.local_cluster"
_SCRATCH = "scratch"
_POLL_S = 0.02
_ADAPT_EVERY_S = 0.5
_KEEP_EVERY_S = 1.0
_GRACE_S = 4.0
_CLOSE_TIMEOUT_S = 15.0


class _Node(ProcessInterface):  # type: ignore[misc]
    """The worker of a node: Dask's own, forked from a process with its imports."""

    def __init__(
        self, scheduler: str, name: str, folder: LeaseFolder, servers: ForkServers
    ) -> None:
        super().__init__(scheduler, name)
        command = python_module(_MODULE, str(folder.path), name, scheduler)
        self._child = Child(name=f"worker {name}", command=command, log=folder.log)
        self._servers = servers
        self._process: Process | None = None

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    async def start(self) -> None:
        self._process = await asyncio.to_thread(self._servers.start, self._child)
        await super().start()

    async def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + _GRACE_S
            while not self.has_ended and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
            self._process.signal_group(signal.SIGKILL)
        await super().close()


class _NodeCluster(SpecCluster):  # type: ignore[misc]
    """A cluster whose workers are named node-0, node-1, …; freed names are used again."""

    def __init__(self, folder: LeaseFolder) -> None:
        keys, servers = make_keys(folder), ForkServers(_MODULE, THREADS, imported=IMPORTED)
        options = {"host": LOOPBACK, "port": 0, "protocol": "tls", "security": keys}
        super().__init__(
            scheduler={"cls": LeaseScheduler, "options": options},
            worker={"cls": _Node, "options": {"folder": folder, "servers": servers}},
            asynchronous=True,
            security=keys,
        )
        self.keeping: asyncio.Task[None] | None = None
        self.folder = folder

    def check(self) -> None:
        """Do nothing: this machine can always start another process."""

    async def _close(self) -> None:
        if self.keeping is not None:
            self.keeping.cancel()
        await asyncio.wait_for(super()._close(), _CLOSE_TIMEOUT_S)
        shutil.rmtree(self.folder.path / _SCRATCH, ignore_errors=True)

    def new_worker_spec(self) -> dict[str, Any]:
        names = (f"node-{number}" for number in itertools.count())
        return {next(name for name in names if name not in self.worker_spec): self.new_spec}


class _DemandAdaptive(Adaptive):  # type: ignore[misc]
    """Grows a pool to what its connected clients request, even before they submit anything.

    Dask alone estimates it from the durations of tasks, which are not known at first.
    """

    async def target(self) -> int:
        return max(int(await super().target()), demand(self.cluster.scheduler))


async def open_local(folder: LeaseFolder, spec: LeaseSpec) -> _NodeCluster:
    """Open a cluster on this machine.

    Side effects: writes key and certificate into the lease's folder; sets Dask's configuration and
    the environment of this process, which the workers inherit.
    """
    role, since = spec.role, time.time()
    prepare(folder, spec)
    cluster: _NodeCluster = await _NodeCluster(folder)
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
        if ended := [name for name, node in cluster.workers.items() if node.has_ended]:
            see = f"See {cluster.folder.log}."
            raise LeaseError(f"The worker of {ended[0]} ended while it started", see)
        if time.monotonic() > deadline:
            raise LeaseError(
                f"{num_here} of {role.nodes} nodes joined within {role.start_timeout:g} s",
                "Raise the role's start_timeout, or request fewer nodes.",
            )
        await asyncio.sleep(_POLL_S)


async def _keep_nodes(cluster: _NodeCluster) -> None:
    """Replace workers that have ended, and those that Dask has given up; runs for ever."""
    while True:
        await asyncio.sleep(_KEEP_EVERY_S)
        (error,) = await asyncio.gather(_renew(cluster), return_exceptions=True)
        if error is not None:
            logger.warning("Nodes could not be replaced, trying again: %r", error)


async def _renew(cluster: _NodeCluster) -> None:
    for name, node in tuple(cluster.workers.items()):
        if node.has_ended:
            await cluster.workers.pop(name).close()
    await cluster  # opens requested workers that are missing


async def _work(folder: LeaseFolder, name: str, scheduler: str) -> None:
    """Run the worker of a node until it is retired, or its host has ended."""
    spec = lease_client.spec(folder)
    configure(spec)
    options = worker_options(folder, spec) | {"name": name, "host": LOOPBACK}
    scratch, loop = str(folder.path / _SCRATCH), asyncio.get_running_loop()
    async with Worker(scheduler, local_directory=scratch, **options) as worker:
        loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(worker.close()))
        await worker.finished()


def main(arguments: list[str]) -> NoReturn:
    """Run a worker; it exits without the interpreter's shutdown, as one forked by Dask's nanny."""
    path, name, scheduler = arguments
    asyncio.run(_work(LeaseFolder(Path(path)), name, scheduler))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
