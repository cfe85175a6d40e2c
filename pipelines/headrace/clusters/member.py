"""Program of each node of a gang: `python -m headrace.clusters.member LEASE_DIR`.

The first task of the job is the lease's host, which is a node too; all others are workers.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from pathlib import Path

from headrace.batch.system import system_of
from headrace.clusters import host, lease_client, preflight
from headrace.clusters.lease_records import BadNodes, LeaseSpec
from headrace.files.atomic import is_there, write_record
from headrace.files.layout import LeaseFolder

_POLL_S = 0.2


async def _serve(folder: LeaseFolder, spec: LeaseSpec, index: int) -> None:
    """Run a node of the gang until its host ends it."""
    # the host, which is a member too, must write a heartbeat before it loads Dask
    worker = importlib.import_module("headrace.clusters.worker")
    importlib.import_module("headrace.clusters.scheduler").prepare(folder, spec)
    scheduler_address = await worker.scheduler_of(folder)
    if scheduler_address is None:
        return
    report = await asyncio.to_thread(preflight.examine, folder, spec, index)
    if report.problems:
        await _closing(folder)  # an earlier end would end the host before it records why
        return
    try:
        node = await worker.open_node(folder, spec, index, scheduler_address)
    except Exception as error:  # recorded for the next lease; the job ends with it
        if not is_there(folder.close):
            name = preflight.node_name()
            why = f"{name}: the worker did not start: {error}"
            write_record(folder.bad_nodes, BadNodes(nodes=(name,), why=why))
        raise
    await worker.serve_until_signal(node, node.keep())


async def _closing(folder: LeaseFolder) -> None:
    while not is_there(folder.close) and not is_there(folder.closed):
        await asyncio.sleep(_POLL_S)


def main(arguments: list[str]) -> int:
    """Run any task of the job."""
    folder = LeaseFolder(Path(arguments[0]).absolute())
    spec = lease_client.spec(folder)
    index = int(os.environ[system_of(spec.role).index_variable])
    if index == 0:
        host.main(arguments)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s node-{index}: %(message)s"
    )
    asyncio.run(_serve(folder, spec, index))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
