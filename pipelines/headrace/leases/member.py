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
from typing import Any

from headrace.batch.systems import system_of
from headrace.leases import client, host, preflight
from headrace.leases.contained import INSIDE
from headrace.leases.records import BadNodes, LeaseSpec
from headrace.processes import die_with_parent
from headrace.storage.atomic import write_record
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
    importlib.import_module("headrace.leases.scheduler").prepare(spec)
    scheduler_address = await _scheduler_of(folder)
    if scheduler_address is None:
        return
    report = await asyncio.to_thread(preflight.examine, folder, spec, index)
    if report.problems:
        await _sent_away(folder)  # whoever ends first would end the host before it can tell why
        return
    try:
        node = await gang.open_node(folder, spec, index, scheduler_address)
    except Exception as error:  # told to whoever starts the next lease; the job ends with it
        _blame_this_node(folder, f"the worker did not start: {error}")
        raise
    await _keep(node, index)


async def serve_inside(folder: LeaseFolder, spec: LeaseSpec, index: int) -> None:
    """Be the worker of a node in the site's container; the member that started it is outside.

    Args:
        folder: The lease.
        spec: What was asked for.
        index: Place of this node in the gang, from 0.
    """
    die_with_parent()
    gang = importlib.import_module("headrace.leases.gang")
    importlib.import_module("headrace.leases.scheduler").prepare(spec)
    scheduler_address = await _scheduler_of(folder)
    if scheduler_address is not None:
        await _keep(await gang.NodeWorker.open(folder, spec, index, scheduler_address), index)


async def _keep(node: Any, index: int) -> None:
    ended = asyncio.create_task(node.keep())
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, ended.cancel)
    try:
        await ended
    except asyncio.CancelledError:
        logger.info("Node %d was asked to end", index)
    finally:
        await node.close()


def _blame_this_node(folder: LeaseFolder, why: str) -> None:
    if not folder.close.exists():
        name = preflight.node_name()
        write_record(folder.bad_nodes, BadNodes(nodes=(name,), why=f"{name}: {why}"))


async def _scheduler_of(folder: LeaseFolder) -> str | None:
    """Where to join; None when the lease ends before there is a scheduler.

    How long that may take is the host's decision alone; the job ends with the host.
    """
    while folder.closed.exists() or not folder.scheduler_file.exists():
        if folder.closed.exists():
            return None
        await asyncio.sleep(_POLL_S)
    return str(json.loads(folder.scheduler_file.read_text())["address"])


async def _sent_away(folder: LeaseFolder) -> None:
    while not folder.close.exists() and not folder.closed.exists():
        await asyncio.sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Entry point of every task of the job, and of what runs in the site's container."""
    folder = LeaseFolder(Path(arguments[0]).absolute())
    spec = client.spec(folder)
    inside = [each.removeprefix(INSIDE) for each in arguments if each.startswith(INSIDE)]
    index = int(inside[0] if inside else os.environ[system_of(spec.role).index_variable])
    if index == 0 and not inside:
        return host.main(arguments)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s node-{index}: %(message)s"
    )
    asyncio.run(serve_inside(folder, spec, index) if inside else serve(folder, spec, index))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
