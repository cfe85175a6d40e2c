"""What runs on each node of a gang: `python -m headrace.leases.member LEASE_DIR`.

The first task of the job is the lease's host, which is a node too; all others are workers.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

from headrace.leases import client, host
from headrace.leases.batch.systems import system_of
from headrace.leases.records import LeaseSpec
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_POLL_S = 0.2


async def serve(folder: LeaseFolder, spec: LeaseSpec, index: int) -> None:
    """Be a node of the gang until its host sends it away.

    Args:
        folder: The lease.
        spec: What was asked for.
        index: Place of this node in the gang, from 1.
    """
    gang = importlib.import_module("headrace.leases.gang")
    gang.prepare(spec)
    scheduler_address = await _scheduler_of(folder)
    if scheduler_address is None:
        return
    worker = await gang.NodeWorker.open(folder, spec, index, scheduler_address)
    ended = asyncio.create_task(worker.keep())
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, ended.cancel)
    try:
        await ended
    except asyncio.CancelledError:
        logger.info("Node %d was asked to end", index)
    finally:
        await worker.close()


async def _scheduler_of(folder: LeaseFolder) -> str | None:
    """Where to join; None when the lease ends before there is a scheduler.

    How long that may take is the host's decision alone; the job ends with the host.
    """
    while not folder.scheduler_file.exists():
        if folder.closed.exists():
            return None
        await asyncio.sleep(_POLL_S)
    return str(json.loads(folder.scheduler_file.read_text())["address"])


def main(arguments: list[str]) -> int:
    """Entry point of every task of the job."""
    folder = LeaseFolder(Path(arguments[0]).absolute())
    spec = client.spec(folder)
    index = int(os.environ[system_of(spec.role).index_variable])
    if index == 0:
        return host.main(arguments)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s node-{index}: %(message)s"
    )
    asyncio.run(serve(folder, spec, index))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
