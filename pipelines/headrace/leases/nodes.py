"""The nodes that a lease has at this moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import LeaseError
from headrace.leases.records import LeaseSpec
from headrace.leases.resources import WAITS
from headrace.leases.waiting import CHECK_EVERY_S


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


def is_there(client: Any, node: Node) -> bool:
    """Whether the worker of a node is still the same.

    Args:
        client: Connected Dask client.
        node: The node, as it was.
    """
    return node.address in {each.address for each in present(client)}


def arrived(
    client: Any,
    spec: LeaseSpec,
    count: int,
    timeout_s: float,
    check: Callable[[], None],
    queue_counts: bool = False,
) -> tuple[Node, ...]:
    """Wait until there are `count` nodes.

    Args:
        client: Connected Dask client.
        spec: What was asked of the lease.
        count: Nodes wanted.
        timeout_s: Longest wait.
        check: Called a few times a second; raises to give up.
        queue_counts: Whether the time that jobs spend in a queue counts.

    Returns:
        All nodes that there are then, in order of their names.

    Raises:
        LeaseError: They did not come in time.
    """
    deadline = time.monotonic() + timeout_s
    while len(found := present(client)) < count:
        check()
        if not queue_counts and waits_for(client):
            deadline = time.monotonic() + timeout_s
        if time.monotonic() > deadline:
            raise LeaseError(
                f"{len(found)} of {count} nodes of lease {spec.lease_id} were there "
                f"after {timeout_s:g} s",
                "See host.log in the lease's folder.",
            )
        time.sleep(CHECK_EVERY_S / 5)
    return found


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
