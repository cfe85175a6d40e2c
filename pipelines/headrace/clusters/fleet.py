"""The workers of a lease, as a step driver uses them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from distributed import Client, Future

from headrace.clusters import cancellable_call
from headrace.clusters import client as lease_client
from headrace.clusters.lifetime import TIMED_OUT
from headrace.clusters.nodes import Node, arrived, loss, now_done, present, results_of, settle
from headrace.clusters.records import LeaseSpec
from headrace.clusters.scheduler import DEMAND, NODE, SLOT, security
from headrace.errors import LeaseError, LeaseLostError, WorkerLostError
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role

__all__ = ["Fleet", "Node"]

Item = TypeVar("Item")
Result = TypeVar("Result")
_Fleet = TypeVar("_Fleet", bound="Fleet")

_CONNECT_TIMEOUT_S, _GROW_TIMEOUT_S = 30.0, 10.0
_AHEAD = 4

_Arguments = Sequence[tuple[Any, ...]]


def _no_check() -> None:
    """Never cancels."""


class Fleet:
    """The workers of a lease; leaving its context cancels what is left.

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
    def open(cls: type[_Fleet], folder: LeaseFolder) -> _Fleet:
        """Connect to the lease.

        Raises:
            LeaseLostError: The lease is not ready or its scheduler does not answer.
        """
        spec, info = lease_client.spec(folder), lease_client.info(folder)
        if info is None:
            raise LeaseLostError(f"Lease {folder.lease_id} is not ready")
        options = {"timeout": _CONNECT_TIMEOUT_S, "security": security(folder)}
        try:
            client = Client(info.scheduler_address, set_as_default=False, **options)
        except (OSError, *TIMED_OUT) as error:
            what = f"The scheduler of lease {folder.lease_id} does not answer: {error}"
            raise LeaseLostError(what, lease_client.why_ended(folder)) from error
        return cls(client, spec)

    def __enter__(self: _Fleet) -> _Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, *TIMED_OUT):  # the scheduler forgets us when it does not answer
            self._cancel(list(self._futures))
        self.client.close()

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = _no_check
    ) -> tuple[Node, ...]:
        """Exactly `count` nodes in order of their names; a pool grows to that number.

        Args:
            count: Nodes wanted.
            timeout_s: Longest wait, not counting what jobs spend in a queue.
            check: Called about twice a second; raises to give up.

        Raises:
            LeaseError: The lease cannot have so many, or they did not come in time.
        """
        if count > self.role.nodes:
            raise LeaseError(
                f"{count} nodes asked of lease {self._spec.lease_id}, which has at most "
                f"{self.role.nodes}",
                f"Raise roles.{self._spec.role_name}.nodes of the site, or ask for fewer.",
            )
        self._demand(count)
        return arrived(self.client, self._spec, count, timeout_s, check)[:count]

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a short call on a node, also while a long one holds it.

        Raises:
            WorkerLostError: The node's worker died.
        """
        future = self._submit(function, arguments, workers=[node.address])
        result: Result = self._gather([future], [node], _no_check)[0]
        return result

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: _Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = _no_check,
    ) -> list[Result]:
        """Run one call on each node, all at once; each holds its node.

        A call asks `cancellable_call.wanted` whether to go on; it is killed otherwise.

        Args:
            function: Function of a module that the nodes can import.
            arguments: Arguments of each call, one tuple a node.
            nodes: Where to run, in the order of the results.
            check: Called about twice a second; raises to cancel.

        Raises:
            WorkerLostError: A worker died; nothing was tried again.
            Exception: Whatever `function` raised first, on any node.
        """
        return self._gather(self._on(nodes, function, arguments), nodes, check)

    @contextmanager
    def beside(
        self, function: Callable[..., object], arguments: _Arguments, nodes: Sequence[Node]
    ) -> Iterator[Callable[[int], bool]]:
        """As `on_nodes`, while the block runs; at its end the calls are wanted no more.

        Nobody waits for their ends, and what they raise stays in the nodes' logs.

        Yields:
            Whether the call on a node, by its place in `nodes`, has ended, or its worker has gone.
        """
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
        check: Callable[[], None] = _no_check,
        retries: int = 2,
    ) -> Iterator[tuple[int, Result]]:
        """Run `function` on every item, spread over all nodes; a pool grows as needed.

        Only a few items for each thread are under way at a time, however long the list is.

        Args:
            function: As for `on_nodes`.
            items: One argument each.
            check: Called about twice a second; raises to cancel.
            retries: How often an item is tried again whose worker died.

        Yields:
            `(index, result)`, in the order in which they are done.

        Raises:
            WorkerLostError: The workers of an item died more often than `retries`.
            Exception: What `function` raised, at once.
        """
        slots = self._grow_for(len(items), check)
        waiting = iter(range(len(items)))
        running: dict[Future, int] = {}
        losses: dict[int, int] = {}
        try:
            while True:
                while len(running) < _AHEAD * slots and (index := next(waiting, None)) is not None:
                    running[self._cancellable(function, (items[index],), SLOT)] = index
                if not running:
                    return
                results, lost = self._first_done(list(running), check)
                done = {future: running.pop(future) for future in (*results, *lost)}
                if lost:
                    settle(check)
                for future in lost:
                    index = done[future]
                    losses[index] = losses.get(index, 0) + 1
                    if losses[index] > retries:
                        raise WorkerLostError(
                            f"Item {index} lost its worker {losses[index]} times; "
                            f"last {loss(future)}",
                            "It may need more memory than the node has; "
                            "see host.log in the lease's folder.",
                        )
                    running[self._cancellable(function, (items[index],), SLOT)] = index
                yield from ((done[future], result) for future, result in results.items())
        finally:
            self._cancel(list(running))

    def _grow_for(self, num_items: int, check: Callable[[], None]) -> int:
        count = min(self.role.nodes, -(-num_items // self.role.threads_per_node))
        if count > 0:
            self._demand(count)
            arrived(self.client, self._spec, 1, self.role.start_timeout, check)
            with suppress(LeaseError):  # work starts with fewer nodes, those to come join in
                arrived(self.client, self._spec, count, _GROW_TIMEOUT_S, check, queue_counts=True)
        return self.role.nodes * self.role.threads_per_node

    def _demand(self, count: int) -> None:
        self.client.set_metadata([DEMAND, self.client.id], count)

    def _on(
        self, nodes: Sequence[Node], function: Callable[..., Any], arguments: _Arguments
    ) -> list[Future]:
        return [
            self._cancellable(function, each, NODE, workers=[node.address])
            for node, each in zip(nodes, arguments, strict=True)
        ]

    def _cancellable(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        resource: str,
        **options: Any,
    ) -> Future:
        key = f"{getattr(function, '__name__', 'call')}-{uuid.uuid4().hex}"
        options |= {"key": key, "resources": {resource: 1}}
        wrapped = (function, arguments, key, cancellable_call.GRACE_S)
        return self._submit(cancellable_call.run, wrapped, **options)

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
        """Wait until some futures are done: those with results, and those that lost their worker.

        `nodes` are those that the futures are bound to.
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
        """A task bound to a worker that died before it started would wait for ever."""
        if self.client.status != "running":
            raise LeaseLostError(f"The scheduler of lease {self._spec.lease_id} has gone")
        for node in self._gone(nodes):
            raise WorkerLostError(f"Worker {node.name} on {node.host} has gone")

    def _gone(self, nodes: Sequence[Node]) -> list[Node]:
        """Nodes whose workers are not the same any more."""
        addresses = {node.address for node in present(self.client)} if nodes else set()
        return [node for node in nodes if node.address not in addresses]

    def _cancel(self, futures: list[Future]) -> None:
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)
        self._futures.difference_update(futures)
