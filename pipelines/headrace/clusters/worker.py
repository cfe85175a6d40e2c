"""The worker of a node; in a pool's job: `python -m headrace.clusters.worker LEASE_DIR NUMBER`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from distributed import Nanny

from headrace.clusters import lease_client, node_marks, preflight
from headrace.clusters.containers import environment, in_container
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.scheduler import address, prepare, worker_options
from headrace.errors import LeaseError
from headrace.files.atomic import is_there
from headrace.files.layout import LeaseFolder
from headrace.processes.identity import die_with_parent

logger = logging.getLogger(__name__)

_INSIDE = "--inside"  # argument of the program in the site's container
_POLL_S = 0.2
_CLOSE_TIMEOUT_S = 15.0
_CONTAINER_CLOSE_TIMEOUT_S = 40.0
_TOO_SOON_S = 30.0


class _NodeWorker:
    """The worker of the node with an index, from 0, with the nanny that restarts it."""

    def __init__(
        self, folder: LeaseFolder, spec: LeaseSpec, index: int, scheduler_address: str
    ) -> None:
        self._folder = folder
        self._scheduler_address = scheduler_address
        self._options = worker_options(folder, spec) | {
            "name": name_of(index),
            "host": address(spec.role.batch.interface),
            # on the node's own disk; Dask removes remains of killed workers there
            "local_directory": tempfile.gettempdir(),
            "death_timeout": spec.role.start_timeout,
        }
        self._nanny: Nanny | None = None

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            try:
                await self.close()
            except Exception:  # Dask asserts if the nanny never started
                logger.exception("The worker of this node could not be closed in order")
            raise

    async def keep(self) -> None:
        """Replace a nanny that gave its worker up, until the lease closes."""
        while self._nanny is not None:
            await self.finished()
            if is_there(self._folder.close) or not is_there(self._folder.spec):
                return
            logger.warning("The worker of this node did not come back; starting another")
            await self._start()

    async def finished(self) -> None:
        """Wait until the worker has ended finally: it was retired, or its host has ended."""
        if self._nanny is not None:
            await self._nanny.finished()

    async def close(self) -> None:
        if self._nanny is not None:
            closing = self._nanny.close(timeout=_CLOSE_TIMEOUT_S)
            await asyncio.wait_for(closing, 2 * _CLOSE_TIMEOUT_S)

    async def _start(self) -> None:
        self._nanny = Nanny(self._scheduler_address, **self._options)
        await self._nanny
        node_marks.note_joined()


class ContainedNode:
    """The process of a gang's node in the site's container, started from outside it."""

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec, index: int) -> None:
        self._folder = folder
        arguments = ("-m", "headrace.clusters.worker", str(folder.path), str(index), _INSIDE)
        self._command = in_container(folder, spec, arguments)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, env=environment()
        )

    async def keep(self) -> None:
        """Start the process again when it ends, until the lease closes."""
        while self._process is not None:
            started_s = time.monotonic()
            code = await self._process.wait()
            if is_there(self._folder.close) or not is_there(self._folder.spec):
                return
            if time.monotonic() - started_s < _TOO_SOON_S:
                raise LeaseError(
                    f"The container of {preflight.node_name()} ended at once, with code {code}",
                    f"See {self._folder.log}; the command was: {' '.join(self._command)}",
                )
            logger.warning("The container of this node ended with code %d; starting another", code)
            await self.start()

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _CONTAINER_CLOSE_TIMEOUT_S)
        except TIMED_OUT:
            process.kill()


GangNode = _NodeWorker | ContainedNode
"""The worker of a gang's node, in a container or not."""


async def open_node(
    folder: LeaseFolder, spec: LeaseSpec, index: int, scheduler_address: str
) -> GangNode:
    """Start the worker of a gang's node, in the site's container if there is one."""
    node: GangNode
    if spec.role.batch.container is None:
        node = _NodeWorker(folder, spec, index, scheduler_address)
    else:
        node = ContainedNode(folder, spec, index)
    await node.start()
    return node


async def serve_until_signal(node: GangNode, serving: Coroutine[Any, Any, None]) -> None:
    """Let a node serve until it is done or a signal ends it, and close it."""
    served = asyncio.create_task(serving)
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, served.cancel)
    try:
        await served
    except asyncio.CancelledError:
        logger.info("Asked to end")
    finally:
        await node.close()


async def scheduler_of(folder: LeaseFolder) -> str | None:
    """Wait for the scheduler's address; return None if the lease ends before it is known.

    Only the host decides how long that may take; a gang's job ends with the host.
    """
    while is_there(folder.closed) or not is_there(folder.scheduler_file):
        if is_there(folder.closed):
            return None
        await asyncio.sleep(_POLL_S)
    return str(json.loads(folder.scheduler_file.read_text())["address"])


def name_of(index: int) -> str:
    """Return the name of the worker of the node with an index, from 0."""
    return f"node-{index}"


async def _serve(folder: LeaseFolder, spec: LeaseSpec, number: int) -> None:
    """Run a node until the host retires it, or has ended."""
    prepare(folder, spec)
    scheduler_address = await scheduler_of(folder)
    if scheduler_address is not None:
        node = _NodeWorker(folder, spec, number, scheduler_address)
        await node.start()
        await serve_until_signal(node, node.finished())


def _is_fit(folder: LeaseFolder, spec: LeaseSpec, number: int) -> bool:
    """Whether the pre-flight finds nothing wrong with this node; its log has the problems."""
    batch = spec.role.batch
    if batch.preflight == "full":  # the nodes of a pool never meet
        batch = batch.model_copy(update={"preflight": "quick"})
    role = spec.role.model_copy(update={"batch": batch})
    alone = spec.model_copy(update={"role": role})
    return not preflight.examine(folder, alone, number + 1).problems


def main(arguments: list[str]) -> int:
    """Run the job of a pool's node, or the process in the container of a gang's node."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder, number = LeaseFolder(Path(arguments[0]).absolute()), int(arguments[1])
    if is_there(folder.close) or is_there(folder.closed) or not is_there(folder.spec):
        logger.info("The lease has ended before this node joined")
        return 0
    spec = lease_client.spec(folder)
    if _INSIDE in arguments:
        if spec.role.kind == "gang":  # a member of the gang is outside
            die_with_parent()
    elif not _is_fit(folder, spec, number):
        return 1
    elif spec.role.batch.container is not None:
        again = ("-m", "headrace.clusters.worker", *arguments, _INSIDE)
        command = in_container(folder, spec, again)
        os.execvpe(command[0], command, environment())
    asyncio.run(_serve(folder, spec, number))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
