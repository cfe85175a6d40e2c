"""A node of a pool, in a job of its own: `python -m headrace.leases.worker LEASE_DIR NUMBER`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from headrace.leases import client, preflight
from headrace.leases.gang import NodeWorker
from headrace.leases.records import LeaseSpec
from headrace.leases.scheduler import prepare
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_INSIDE = "--inside"


async def serve(folder: LeaseFolder, spec: LeaseSpec, number: int) -> None:
    """Be a node until the host sends it away, or has gone.

    Args:
        folder: The lease.
        spec: What was asked for.
        number: Place of this node, from 0.
    """
    prepare(spec)
    scheduler_address = json.loads(folder.scheduler_file.read_text())["address"]
    worker = await NodeWorker.open(folder, spec, number, scheduler_address)
    ended = asyncio.create_task(worker.finished())
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, ended.cancel)
    try:
        await ended
    except asyncio.CancelledError:
        logger.info("Asked to end")
    finally:
        await worker.close()


def is_fit(folder: LeaseFolder, spec: LeaseSpec, number: int) -> bool:
    """Whether the pre-flight finds nothing wrong with this node; its log tells what."""
    batch = spec.role.batch
    if batch.preflight == "full":  # the nodes of a pool never meet
        batch = batch.model_copy(update={"preflight": "quick"})
    role = spec.role.model_copy(update={"batch": batch})
    alone = spec.model_copy(update={"role": role})
    return not preflight.examine(folder, alone, number + 1).problems


def main(arguments: list[str]) -> int:
    """Entry point of the job."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder, number = LeaseFolder(Path(arguments[0]).absolute()), int(arguments[1])
    if folder.close.exists() or folder.closed.exists() or not folder.spec.exists():
        logger.info("The lease has ended before this node was there")
        return 0
    spec = client.spec(folder)
    is_inside = _INSIDE in arguments
    if not is_inside and not is_fit(folder, spec, number):
        return 1
    if spec.role.batch.container is not None and not is_inside:
        again = ("-m", "headrace.leases.worker", *arguments, _INSIDE)
        command = preflight.in_container(folder, spec, again)
        os.execvpe(command[0], command, preflight.environment())
    asyncio.run(serve(folder, spec, number))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
