"""Many calls on the nodes of a lease, by whoever accounts for what they take there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from distributed import Client, Future

from headrace.clusters import cancellable_call
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
    """What whoever began it calls it."""
    result: Any = None
    lost: str = ""
    """How its worker was lost; empty when it was not."""
    error: BaseException | None = None


class PartOfFleet(Fleet):
    """Some nodes of a lease, for a call that holds them; whoever made it closes its client."""

    def __init__(self, client: Client, spec: LeaseSpec, nodes: Sequence[Node]) -> None:
        super().__init__(client, spec)
        self.role = self.role.model_copy(update={"nodes": len(nodes)})
        self._nodes = tuple(nodes)

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """The first of them; raises `LeaseError` when there are not so many."""
        del timeout_s
        check()
        if count > len(self._nodes):
            raise LeaseError(f"{count} nodes asked of {len(self._nodes)} that are given")
        return self._nodes[:count]


class SharedCalls(Fleet):
    """A fleet for calls that share nodes: they take no place, whoever begins them accounts for it.

    A call leaves its worker's pool of threads, so that any number runs at once.
    """

    def __init__(self, client: Client, spec: LeaseSpec) -> None:
        super().__init__(client, spec)
        self._done: SimpleQueue[Future | EndedCall] = SimpleQueue()
        self._running: dict[Future, tuple[Hashable, Node]] = {}

    def there(self) -> tuple[Node, ...]:
        """Nodes that are there now."""
        self._check_alive(())
        return present(self.client)

    def are_queued(self) -> bool:
        """Whether nodes of a pool wait in a queue."""
        return bool(waits_for(self.client))

    def left_s(self) -> dict[str, float]:
        """Seconds after which nodes are replaced by others, by name; none that stay to the end."""
        return dict(self.client.get_metadata([LEFT], default={}))

    def ask_for(self, count: int) -> None:
        """Nodes that there is work for; a pool grows to that number, and shrinks."""
        self._demand(min(count, self.role.nodes))

    def begin(
        self, tag: Hashable, node: Node, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Begin a call on a node; it asks `cancellable_call.wanted` whether to go on."""
        key = f"{getattr(function, '__name__', 'call')}-{uuid.uuid4().hex}"
        wrapped = (function, arguments, key, cancellable_call.GRACE_S)
        run = cancellable_call.run_aside
        future = self._submit(run, wrapped, key=key, workers=[node.address])
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
            except Exception as error:  # noqa: BLE001 - told to whoever began it
                ended = EndedCall(tag=tag, error=error)
            self._done.put(ended)

        Thread(target=run, name=f"across-{tag}", daemon=True).start()

    def ended(self, timeout_s: float) -> list[EndedCall]:
        """Calls that have ended, as soon as there is one; none after that time."""
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
        """Calls whose workers are not among these any more: Dask would wait for them for ever."""
        addresses = {node.address for node in nodes}
        gone = [
            future for future, (_, node) in self._running.items() if node.address not in addresses
        ]
        self._cancel(gone)
        lost = []
        for future in gone:
            tag, node = self._running.pop(future)
            lost.append(EndedCall(tag=tag, lost=f"worker {node.name} on {node.host} has gone"))
        return lost

    def _ended(self, future: Future, results: dict[Future, Any]) -> EndedCall:
        tag, node = self._running.pop(future)
        if future in results:
            return EndedCall(tag=tag, result=results[future])
        if future.status == _RAISED and loss(future) is None:
            return EndedCall(tag=tag, error=future.exception())
        how = loss(future) if future.status == _RAISED else f"its task went with {node.name}"
        return EndedCall(tag=tag, lost=how or "")
