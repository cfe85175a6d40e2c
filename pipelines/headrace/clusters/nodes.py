"""Waiting for the nodes of a lease and for what runs on them, in short rounds."""

from __future__ import annotations

import time
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Future, KilledWorker, wait
from distributed.comm import CommClosedError

from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.records import LeaseSpec
from headrace.clusters.scheduler import WAITS
from headrace.errors import LeaseError

_CHECK_EVERY_S = 0.5
_LOOK_EVERY_S = 0.1
_GO_TOGETHER_S = 1.0


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


def present(client: Client) -> tuple[Node, ...]:
    """Nodes whose workers are connected and running, in order of their names."""
    workers = client.run_on_scheduler(_workers)
    ordered = sorted(workers, key=lambda worker: (len(worker[0]), worker[0]))
    return tuple(
        Node(name=name, address=address, host=urlsplit(address).hostname or "", index=index)
        for index, (name, address) in enumerate(ordered)
    )


def _workers(dask_scheduler: Any) -> list[tuple[str, str]]:
    """Runs in the scheduler: name and address of every worker."""
    states = dask_scheduler.workers.values()
    return [(str(state.name), state.address) for state in states if state.status.name == "running"]


def arrived(
    client: Client,
    spec: LeaseSpec,
    count: int,
    timeout_s: float,
    check: Callable[[], None],
    queue_counts: bool = False,
) -> tuple[Node, ...]:
    """Wait until there are `count` nodes; all that there are then, in order of their names.

    `check` is called a few times a second and may raise; `queue_counts` says whether the time that
    jobs spend in a queue counts.
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
        time.sleep(_LOOK_EVERY_S)
    return found


def waits_for(client: Client) -> str:
    """What the nodes of a pool wait for in a queue; empty when they do not."""
    return str(client.get_metadata([WAITS], default=""))


def now_done(client: Client, futures: list[Future]) -> list[Future]:
    """Futures that are done within half a second: with results, errors or cancelled."""
    try:
        with client.as_current():
            done = wait(futures, timeout=_CHECK_EVERY_S, return_when="FIRST_COMPLETED").done
    except TIMED_OUT:
        return []
    return [future for future in futures if future in done]


def settle(check: Callable[[], None]) -> None:
    """Wait until workers that go together have gone, as preempted ones do.

    An item whose worker was lost would be given to the next of them, and count as lost again.
    """
    deadline = time.monotonic() + _GO_TOGETHER_S
    while time.monotonic() < deadline:
        check()
        time.sleep(_LOOK_EVERY_S)


def loss(future: Future) -> str | None:
    """How the worker of a finished future was lost; None when it was not."""
    if future.status != "error":
        return None
    error = future.exception()
    if isinstance(error, KilledWorker):
        return f"worker {error.last_worker.name} at {error.last_worker.address}"
    return str(error) if isinstance(error, CommClosedError) else None


def results_of(client: Client, futures: list[Future]) -> dict[Future, Any]:
    """Results of futures that are done; none of those whose workers were lost, see `loss`."""
    kept = [future for future in futures if loss(future) is None]
    try:
        return dict(zip(kept, _gathered(client, kept), strict=True))
    except (KilledWorker, _GoneError):  # a result went with its worker, before it was here
        found: dict[Future, Any] = {}
        for future in kept:
            with suppress(KilledWorker, _GoneError):
                (found[future],) = _gathered(client, [future])
        return found


class _GoneError(Exception):
    """A result is not there any more."""


def _gathered(client: Client, futures: list[Future]) -> list[Any]:
    """Results of futures that were done; for one that has gone Dask would wait for ever."""
    loop = client.loop.asyncio_loop
    gathering = run_coroutine_threadsafe(client.gather(futures, asynchronous=True), loop)
    while True:
        try:
            return list(gathering.result(_CHECK_EVERY_S))
        except TIMED_OUT:
            if gathering.done():  # what was called raised it
                raise
        if not all(future.done() for future in futures):
            gathering.cancel()
            raise _GoneError
