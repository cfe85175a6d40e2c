"""The nodes that a lease has at this moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace.leases.resources import WAITS


@dataclass(frozen=True)
class Node:
    """One node of a lease."""

    name: str
    """Name of its worker, as in `node-0`; a replaced worker keeps it."""
    address: str
    """Address of its Dask worker; a replaced worker has another."""
    host: str
    """Address that other nodes reach it by, for rendezvous."""
    index: int
    """Place in the order of names, from 0."""


def present(client: Any) -> tuple[Node, ...]:
    """Nodes whose workers are connected and running, in order of their names.

    Args:
        client: Connected Dask client.
    """
    workers = client.run_on_scheduler(_workers)
    ordered = sorted(workers, key=lambda worker: (len(worker[0]), worker[0]))
    return tuple(
        Node(name=name, address=address, host=urlsplit(address).hostname or "", index=index)
        for index, (name, address) in enumerate(ordered)
    )


def waits_for(client: Any) -> str:
    """What the nodes of a pool wait for in a queue; empty when they do not.

    Args:
        client: Connected Dask client.
    """
    return str(client.run_on_scheduler(_waits))


def _waits(dask_scheduler: Any) -> str:
    return str(dask_scheduler.task_metadata.get(WAITS, ""))


def _workers(dask_scheduler: Any) -> list[tuple[str, str]]:
    """Runs in the scheduler: name and address of every worker."""
    states = dask_scheduler.workers.values()
    return [(str(state.name), state.address) for state in states if state.status.name == "running"]
