"""The workers of a lease, for a step driver."""

from __future__ import annotations

import math
import time
import uuid
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Client, Future, KilledWorker, wait
from distributed.comm import CommClosedError
from typing_extensions import Self

from headrace.clusters import cancellable_call, lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.node_calls import (
    Arguments,
    Item,
    Node,
    NodeCalls,
    Result,
    lease_ends,
    no_check,
    no_end,
)
from headrace.clusters.scheduler import DEMAND, NODE, SLOT, WAITS, security
from headrace.errors import LeaseError, LeaseLostError, WorkerLostError
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role

MAX_LOSSES = 2
"""Most times that an item of a map may lose its worker."""

_CONNECT_TIMEOUT_S, _GROW_TIMEOUT_S = 30.0, 10.0
_AHEAD = 4
_CHECK_EVERY_S = 0.5
_POLL_S = 0.1
_LOOKS_TOGETHER = 10


class Fleet(NodeCalls):
    """The workers of a lease; the end of its context cancels pending calls.

    Attributes:
        client: The connected Dask client, which the fleet closes.
        role: The role of the lease: nodes, threads, timeouts.
    """

    def __init__(self, client: Client, spec: LeaseSpec) -> None:
        self.client = client
        self.role: Role = spec.role
        self._spec = spec
        self._futures: set[Future] = set()

    @classmethod
    def open(cls, folder: LeaseFolder) -> Self:
        """Connect to the lease; raise LeaseLostError if it is not ready or does not answer."""
        spec, info = lease_client.spec(folder), lease_client.info(folder)
        if info is None:
            raise LeaseLostError(f"Lease {folder.lease_id} is not ready")
        options = {"timeout": _CONNECT_TIMEOUT_S, "security": security(folder)}
        try:
            client = Client(info.scheduler_address, set_as_default=False, **options)
        except (OSError, *TIMED_OUT) as error:
            what = f"The scheduler of lease {folder.lease_id} does not answer: {error}"
            raise LeaseLostError(what, LeaseFiles.read(folder).why_ended) from error
        return cls(client, spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, *TIMED_OUT):  # a scheduler without an answer forgets this client
            self._cancel(list(self._futures))
        self.client.close()

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """See `NodeCalls`."""
        if count > self.role.nodes:
            raise LeaseError(
                f"{count} nodes requested of lease {self._spec.lease_id}, which has at most "
                f"{self.role.nodes}",
                f"Raise roles.{self._spec.role_name}.nodes of the site, or request fewer.",
            )
        self._demand(count)
        return arrived(self.client, self._spec, count, timeout_s, check)[:count]

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `NodeCalls`."""
        future = self._submit(function, arguments, workers=[node.address])
        result: Result = self._gather([future], [node], no_check)[0]
        return result

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = no_check,
    ) -> list[Result]:
        """See `NodeCalls`."""
        return self._gather(self._on(nodes, function, arguments), nodes, check)

    @contextmanager
    def beside(
        self, function: Callable[..., object], arguments: Arguments, nodes: Sequence[Node]
    ) -> Iterator[Callable[[int], bool]]:
        """See `NodeCalls`."""
        futures = self._on(nodes, function, arguments)
        try:
            yield lambda at: futures[at].done() or bool(self._gone([nodes[at]]))
        finally:
            self._cancel(futures)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
        left_s: Callable[[], float] = no_end,
    ) -> Iterator[tuple[int, Result]]:
        """See `NodeCalls`."""
        slots, num_begun, longest_s = self._grow_for(len(items), check), 0, 0.0
        timed = update_wrapper(partial(cancellable_call.timed, function), function)
        begin = partial(self._cancellable, timed, resources={SLOT: 1})
        running: dict[Future, int] = {}
        losses: dict[int, int] = {}
        try:
            while True:
                remaining_s = max(left_s(), 0.0)
                # no item has ended: with an end, no queue ahead
                unknown_s = 1.0 if math.isinf(remaining_s) else remaining_s or 1.0
                rounds = int(min(_AHEAD, remaining_s / (longest_s or unknown_s)))
                while num_begun < len(items) and len(running) < rounds * slots:
                    running[begin((items[num_begun],))] = num_begun
                    num_begun += 1
                if not running and num_begun < len(items):
                    raise lease_ends(len(items) - num_begun, longest_s)
                if not running:
                    return
                results, lost = self._first_done(list(running), check)
                done = {future: running.pop(future) for future in (*results, *lost)}
                if lost:
                    wait_for_losses(check)
                for future in lost:
                    index = done[future]
                    losses[index] = losses.get(index, 0) + 1
                    if losses[index] > MAX_LOSSES:
                        raise WorkerLostError(
                            f"Item {index} lost its worker {losses[index]} times; "
                            f"last {loss(future)}",
                            "It may need more memory than the node has; "
                            "see host.log in the lease's folder.",
                        )
                    running[begin((items[index],))] = index
                longest_s = max([longest_s, *(seconds for seconds, _ in results.values())])
                yield from ((done[future], result) for future, (_, result) in results.items())
        finally:
            self._cancel(list(running))

    def _grow_for(self, num_items: int, check: Callable[[], None]) -> int:
        count = min(self.role.nodes, -(-num_items // self.role.threads_per_node))
        if count > 0:
            self._demand(count)
            arrived(self.client, self._spec, 1, self.role.start_timeout, check)
            with suppress(LeaseError):  # work starts with fewer nodes, others join later
                arrived(self.client, self._spec, count, _GROW_TIMEOUT_S, check, queue_counts=True)
        return self.role.nodes * self.role.threads_per_node

    def _demand(self, count: int) -> None:
        self.client.set_metadata([DEMAND, self.client.id], count)

    def _on(
        self, nodes: Sequence[Node], function: Callable[..., Any], arguments: Arguments
    ) -> list[Future]:
        return [
            self._cancellable(function, each, resources={NODE: 1}, workers=[node.address])
            for node, each in zip(nodes, arguments, strict=True)
        ]

    def _cancellable(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        aside: bool = False,
        **options: Any,
    ) -> Future:
        key = f"{getattr(function, '__name__', 'call')}-{uuid.uuid4().hex}"
        wrapped = (function, arguments, key, cancellable_call.GRACE_S, aside)
        return self._submit(cancellable_call.run, wrapped, key=key, **options)

    def _submit(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any
    ) -> Future:
        future = self.client.submit(
            function, *arguments, pure=False, allow_other_workers=False, **options
        )
        self._futures.add(future)
        return future

    def _gather(
        self, futures: list[Future], nodes: Sequence[Node], check: Callable[[], None]
    ) -> list[Any]:
        left = dict(zip(futures, nodes, strict=True))
        results: dict[Future, Any] = {}
        try:
            while left:
                found, lost = self._first_done(list(left), check, list(left.values()))
                for future in lost:
                    node = left[future]
                    raise WorkerLostError(f"Worker {node.name} on {node.host} died: {loss(future)}")
                results |= found
                left = {future: node for future, node in left.items() if future not in found}
        finally:
            self._cancel(list(left))
        return [results[future] for future in futures]

    def _first_done(
        self, futures: list[Future], check: Callable[[], None], nodes: Sequence[Node] = ()
    ) -> tuple[dict[Future, Any], list[Future]]:
        """Wait for done futures; return results, and the futures that lost their worker.

        `nodes` are the nodes that the futures are bound to.
        """
        check()
        while not (done := now_done(self.client, futures)):
            self._check_alive(nodes)
            check()
        if any(future.status == "cancelled" for future in done):
            raise LeaseLostError(f"The scheduler of lease {self._spec.lease_id} dropped a task")
        try:
            results = results_of(self.client, done)
        finally:
            self._futures.difference_update(done)
        return results, [future for future in done if future not in results]

    def _check_alive(self, nodes: Sequence[Node]) -> None:
        """Raise if a worker has died: Dask would wait for ever for a task bound to it."""
        if self.client.status != "running":
            raise LeaseLostError(f"The scheduler of lease {self._spec.lease_id} has ended")
        for node in self._gone(nodes):
            raise WorkerLostError(f"Worker {node.name} on {node.host} has ended")

    def _gone(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes whose workers have ended or were replaced."""
        addresses = {node.address for node in present(self.client)} if nodes else set()
        return [node for node in nodes if node.address not in addresses]

    def _cancel(self, futures: list[Future]) -> None:
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)
        self._futures.difference_update(futures)


@contextmanager
def client_of(folder: LeaseFolder) -> Iterator[Client]:
    """Yield a Dask client of a lease for a user's own calls; a node runs one for each thread."""
    with Fleet.open(folder) as fleet, dask.annotate(resources={SLOT: 1}):
        yield fleet.client


def present(client: Client) -> tuple[Node, ...]:
    """Return the nodes whose workers are connected and running, in order of their names."""
    workers = client.run_on_scheduler(_workers)
    ordered = sorted(workers, key=lambda worker: (len(worker[0]), worker[0]))
    return tuple(
        Node(name=name, address=address, host=urlsplit(address).hostname or "", index=index)
        for index, (name, address) in enumerate(ordered)
    )


def _workers(dask_scheduler: Any) -> list[tuple[str, str]]:
    """Return name and address of every worker; runs in the scheduler."""
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
    """Wait until `count` nodes have joined; return all joined nodes, in order of their names.

    `check` is called a few times a second and may raise; `queue_counts`: whether the time that jobs
    spend in a queue counts.
    """
    deadline = time.monotonic() + timeout_s
    while len(found := present(client)) < count:
        check()
        if not queue_counts and waits_for(client):
            deadline = time.monotonic() + timeout_s
        if time.monotonic() > deadline:
            raise LeaseError(
                f"{len(found)} of {count} nodes of lease {spec.lease_id} joined "
                f"within {timeout_s:g} s",
                "See host.log in the lease's folder.",
            )
        time.sleep(_POLL_S)
    return found


def waits_for(client: Client) -> str:
    """Return what the nodes of a pool wait for in a queue; empty if they do not."""
    return str(client.get_metadata([WAITS], default=""))


def now_done(client: Client, futures: list[Future]) -> list[Future]:
    """Return futures that are done within half a second: with results, errors or cancelled."""
    try:
        with client.as_current():
            done = wait(futures, timeout=_CHECK_EVERY_S, return_when="FIRST_COMPLETED").done
    except TIMED_OUT:
        return []
    return [future for future in futures if future in done]


def wait_for_losses(check: Callable[[], None]) -> None:
    """Wait until all workers that are lost together have ended, as preempted ones.

    Otherwise the item of a lost worker would be given to the next of them, and be lost again.
    """
    for _ in range(_LOOKS_TOGETHER):
        check()
        time.sleep(_POLL_S)


def loss(future: Future) -> str | None:
    """Return how the worker of a done future was lost; None if it was not."""
    if future.status != "error":
        return None
    error = future.exception()
    if isinstance(error, KilledWorker):
        return f"worker {error.last_worker.name} at {error.last_worker.address}"
    return str(error) if isinstance(error, CommClosedError) else None


def results_of(client: Client, futures: list[Future]) -> dict[Future, Any]:
    """Return results of done futures, without those whose workers were lost, see `loss`."""
    intact = [future for future in futures if loss(future) is None]
    try:
        return dict(zip(intact, _gathered(client, intact), strict=True))
    except (KilledWorker, _GoneError):  # a worker was lost before its result was fetched
        found: dict[Future, Any] = {}
        for future in intact:
            with suppress(KilledWorker, _GoneError):
                (found[future],) = _gathered(client, [future])
        return found


class _GoneError(Exception):
    """A result was lost."""


def _gathered(client: Client, futures: list[Future]) -> list[Any]:
    """Return results of done futures; for a lost one Dask would wait for ever."""
    loop = client.loop.asyncio_loop
    gathering = run_coroutine_threadsafe(client.gather(futures, asynchronous=True), loop)
    while True:
        try:
            return list(gathering.result(_CHECK_EVERY_S))
        except TIMED_OUT:
            if gathering.done():  # the call itself raised it
                raise
        if not all(future.done() for future in futures):
            gathering.cancel()
            raise _GoneError
