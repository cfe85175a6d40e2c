"""Many calls on the nodes of a lease, for a caller that accounts for their resources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from distributed import Client, Future

from headrace.clusters.fleet import Fleet, loss, present, results_of, waits_for
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.node_calls import Node, no_check
from headrace.clusters.scheduler import LEFT
from headrace.errors import LeaseError

_FINISHED, _RAISED = "finished", "error"


@dataclass(frozen=True, kw_only=True)
class EndedCall:
    """A call that has ended."""

    tag: Hashable
    """Identifier from the call's caller."""
    result: Any = None
    lost: str = ""
    """How its worker was lost; empty if it was not."""
    error: BaseException | None = None


class PartOfFleet(Fleet):
    """Some nodes of a lease, for a call that holds them; the creator closes its client."""

    def __init__(self, client: Client, spec: LeaseSpec, nodes: Sequence[Node]) -> None:
        super().__init__(client, spec)
        self.role = self.role.model_copy(update={"nodes": len(nodes)})
        self._nodes = tuple(nodes)

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """Return the first `count` nodes; raise `LeaseError` if there are fewer."""
        del timeout_s
        check()
        if count > len(self._nodes):
            raise LeaseError(f"{count} nodes requested, of {len(self._nodes)} that were given")
        return self._nodes[:count]


class SharedCalls(Fleet):
    """A fleet for calls that share nodes; the caller accounts for their resources.

    A call leaves its worker's thread pool, so that any number runs at once.
    """

    def __init__(self, client: Client, spec: LeaseSpec) -> None:
        super().__init__(client, spec)
        self._done: SimpleQueue[Future | EndedCall] = SimpleQueue()
        self._running: dict[Future, tuple[Hashable, Node]] = {}

    def there(self) -> tuple[Node, ...]:
        """Return the joined nodes."""
        self._check_alive(())
        return present(self.client)

    def are_queued(self) -> bool:
        """Whether nodes of a pool wait in a queue."""
        return bool(waits_for(self.client))

    def left_s(self) -> dict[str, float]:
        """Return the seconds until nodes are replaced, by name; nodes that stay are absent."""
        return dict(self.client.get_metadata([LEFT], default={}))

    def ask_for(self, count: int) -> None:
        """Request the nodes that there is work for; a pool grows or shrinks to that number."""
        self._demand(min(count, self.role.nodes))

    def begin(
        self, tag: Hashable, node: Node, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Begin a call on a node; it must check `cancellable_call.wanted`."""
        future = self._cancellable(function, arguments, aside=True, workers=[node.address])
        self._running[future] = (tag, node)
        future.add_done_callback(self._done.put)

    def begin_across(
        self, tag: Hashable, nodes: Sequence[Node], function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Begin a call in a thread of this process that uses several nodes, its last argument."""
        part = PartOfFleet(self.client, self._spec, nodes)

        def run() -> None:
            try:
                ended = EndedCall(tag=tag, result=function(*arguments, part))
            except Exception as error:  # noqa: BLE001 - returned to the caller
                ended = EndedCall(tag=tag, error=error)
            self._done.put(ended)

        Thread(target=run, name=f"across-{tag}", daemon=True).start()

    def ended(self, timeout_s: float) -> list[EndedCall]:
        """Wait for ended calls; return them as soon as there is one, or none after `timeout_s`."""
        done: list[Future | EndedCall] = []
        with suppress(Empty):
            done.append(self._done.get(timeout=timeout_s))
            while True:
                done.append(self._done.get_nowait())
        across = [each for each in done if isinstance(each, EndedCall)]
        futures = [each for each in done if not isinstance(each, EndedCall)]
        known = [future for future in futures if future in self._running]
        well = [future for future in known if future.status == _FINISHED]
        results = results_of(self.client, well) if well else {}
        self._futures.difference_update(futures)
        return across + [self._ended(future, results) for future in known]

    def drop_lost(self, nodes: tuple[Node, ...]) -> list[EndedCall]:
        """Return calls whose workers are not among `nodes`: Dask would wait for ever for them."""
        addresses = {node.address for node in nodes}
        gone = [
            future for future, (_, node) in self._running.items() if node.address not in addresses
        ]
        self._cancel(gone)
        lost = []
        for future in gone:
            tag, node = self._running.pop(future)
            lost.append(EndedCall(tag=tag, lost=f"worker {node.name} on {node.host} has ended"))
        return lost

    def _ended(self, future: Future, results: dict[Future, Any]) -> EndedCall:
        tag, node = self._running.pop(future)
        if future in results:
            return EndedCall(tag=tag, result=results[future])
        if future.status == _RAISED and loss(future) is None:
            return EndedCall(tag=tag, error=future.exception())
        how = loss(future) if future.status == _RAISED else f"its task was lost with {node.name}"
        return EndedCall(tag=tag, lost=how or "")
