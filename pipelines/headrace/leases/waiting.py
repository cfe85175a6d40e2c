"""Waiting for Dask futures in short rounds, so that cancelling and losses are noticed."""

from __future__ import annotations

from asyncio import run_coroutine_threadsafe
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed import Client, Future, KilledWorker, wait
from distributed.comm import CommClosedError

from headrace.errors import WorkerLostError
from headrace.leases.timeouts import TIMED_OUT

CHECK_EVERY_S = 0.5
"""Longest time between two looks at whether the work is still wanted."""


def first_done(
    client: Client, futures: list[Future], check: Callable[[], None], look: Callable[[], None]
) -> list[Future]:
    """Wait until at least one future is done.

    Args:
        client: Client of the futures.
        futures: What is waited for; at least one.
        check: Called about twice a second; raises to cancel.
        look: Called after each round in which nothing was done; raises when nothing ever will be.

    Returns:
        All futures that are done, in the order given; with results, errors or cancelled.
    """
    while True:
        check()
        try:
            with client.as_current():
                done = wait(futures, timeout=CHECK_EVERY_S, return_when="FIRST_COMPLETED").done
        except TIMED_OUT:
            look()
            continue
        return [future for future in futures if future in done]


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
    """Results of futures that were done.

    Raises:
        _GoneError: One is done no more. Dask would wait until its node computes it again, which has
            gone.
    """
    loop = client.loop.asyncio_loop
    gathering = run_coroutine_threadsafe(client.gather(futures, asynchronous=True), loop)
    while True:
        try:
            return list(gathering.result(CHECK_EVERY_S))
        except TIMED_OUT:
            if gathering.done():  # what was called raised it
                raise
        if not all(future.done() for future in futures):
            gathering.cancel()
            raise _GoneError


def lost_item(index: int, num_losses: int, last: str | None) -> WorkerLostError:
    """The error for an item whose workers died too often.

    Args:
        index: Place of the item in its list.
        num_losses: Workers it lost.
        last: The last one of them.
    """
    return WorkerLostError(
        f"Item {index} lost its worker {num_losses} times; last {last}",
        "It may need more memory than the node has; see host.log in the lease's folder.",
    )


def no_check() -> None:
    """A check that never cancels."""
