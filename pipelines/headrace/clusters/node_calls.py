"""Calls on the nodes of a lease, as steps make them: `NodeCalls`.

`Fleet` makes them through Dask, `OneNode` in the process of a trial, on the one node that it has.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headrace.clusters.cancellable_call import call_while, node_name, wanted
from headrace.errors import LeaseLostError
from headrace.recipe.site import Role

Item = TypeVar("Item")
Result = TypeVar("Result")

Arguments = Sequence[tuple[Any, ...]]

_LOOPBACK = "127.0.0.1"
_CHECK_S = 0.1


def no_check() -> None:
    """Never cancels."""


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


class NodeCalls(Protocol):
    """Calls on nodes.

    Attributes:
        role: The role of the lease: nodes, threads, timeouts.
    """

    role: Role

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """Exactly `count` nodes in order of their names; a pool grows to that number.

        Args:
            count: Nodes wanted.
            timeout_s: Longest wait, not counting what jobs spend in a queue.
            check: Called about twice a second; raises to give up.

        Raises:
            LeaseError: The lease cannot have so many, or they did not come in time.
        """

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a short call on a node, also while a long one holds it.

        Raises:
            WorkerLostError: The node's worker died.
        """

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = no_check,
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

    def beside(
        self, function: Callable[..., object], arguments: Arguments, nodes: Sequence[Node]
    ) -> AbstractContextManager[Callable[[int], bool]]:
        """As `on_nodes`, while the block runs; at its end the calls are wanted no more.

        Nobody waits for their ends, and what they raise stays in the nodes' logs.

        Yields:
            Whether the call on a node, by its place in `nodes`, has ended, or its worker has gone.
        """

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
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


class OneNode(NodeCalls):
    """The node of this thread's call; calls are made there, by this process."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._node = Node(name=_name(), address="", host=_LOOPBACK, index=0)

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """The node, whatever `count` is."""
        del count, timeout_s
        check()
        return (self._node,)

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """See `NodeCalls`."""
        del node
        return function(*arguments)

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = no_check,
    ) -> list[Result]:
        """See `NodeCalls`."""
        del nodes
        return [_called(function, each, check) for each in arguments]

    @contextmanager
    def beside(
        self, function: Callable[..., object], arguments: Arguments, nodes: Sequence[Node]
    ) -> Iterator[Callable[[int], bool]]:
        """As `NodeCalls.beside`, but there is nobody whom the node could serve."""
        del function, arguments, nodes
        yield lambda _: True

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
        retries: int = 2,
    ) -> Iterator[tuple[int, Result]]:
        """As `NodeCalls.map`; what dies with the node is the driver's to try again."""
        del retries
        for index, item in enumerate(items):
            yield index, _called(function, (item,), check)


def _called(
    function: Callable[..., Result], arguments: tuple[Any, ...], check: Callable[[], None]
) -> Result:
    """Call a function, while this thread looks whether to go on: it is unwanted otherwise."""
    stopped = threading.Event()

    def is_wanted() -> bool:
        return not stopped.is_set()

    context = copy_context()
    with ThreadPoolExecutor(1, "headrace-trial") as pool:  # at its end it waits for the call
        call = pool.submit(context.run, call_while, is_wanted, function, *arguments)
        try:
            while not wait([call], _CHECK_S).done:
                if not wanted():
                    raise LeaseLostError("The driver of the suite has gone, or waits no more")
                check()
        finally:
            stopped.set()
        result: Result = call.result()
        return result


def _name() -> str:
    try:
        return node_name()
    except ValueError:  # outside of a Dask worker
        return socket.gethostname()
