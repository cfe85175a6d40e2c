"""Calls on the nodes of a lease, for steps: `NodeCalls`.

`Fleet` makes them through Dask; `OneNode` in the process of a trial, on its only node.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from headrace.clusters.cancellable_call import call_while, node_name, timed, wanted
from headrace.errors import LeaseEndsError, LeaseLostError
from headrace.recipe.site import Role

Item = TypeVar("Item")
Result = TypeVar("Result")

Arguments = Sequence[tuple[Any, ...]]

_LOOPBACK = "127.0.0.1"
_CHECK_S = 0.1


def no_check() -> None:
    """Do nothing; never cancels."""


no_end = partial(float, "inf")
"""Returns the time left of a lease without an end."""


def lease_ends(num_left: int, longest_s: float) -> LeaseEndsError:
    """Return the error for items that would not be done before the end of the lease."""
    what = f"{num_left} items are left of up to {longest_s:.0f} s each, longer than the lease lasts"
    return LeaseEndsError(what, "They are done in another lease.")


@dataclass(frozen=True)
class Node:
    """One node of a lease."""

    name: str
    """Name of its worker, as `node-0`; a replaced worker keeps it."""
    address: str
    """Address of its Dask worker; a replaced worker has another."""
    host: str
    """Address at which other nodes reach it, for rendezvous."""
    index: int
    """Index in the order of names, from 0."""


class NodeCalls(Protocol):
    """Calls on nodes."""

    role: Role
    """The role of the lease: nodes, threads, timeouts."""

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """Return exactly `count` nodes in order of their names; a pool grows to that number.

        Waits up to `timeout_s`, without the time of jobs in a queue. `check` is called about twice
        a second, and raises to end the wait.

        Raises:
            LeaseError: The lease cannot have `count` nodes, or they did not join in time.
        """

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a short call beside a long one; raise WorkerLostError if the node's worker died."""

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = no_check,
    ) -> list[Result]:
        """Run one call on each node, all at once; each occupies its node.

        A call checks `cancellable_call.wanted`, and is killed if it continues when that is false.
        `function` is of a module that nodes can import, `arguments` has a tuple per node, in the
        order of `nodes` and results. `check` is called about twice a second, and raises to cancel.

        Raises:
            WorkerLostError: A worker died; no call is retried.
            Exception: The first error that `function` raised on any node.
        """

    def beside(
        self, function: Callable[..., object], arguments: Arguments, nodes: Sequence[Node]
    ) -> AbstractContextManager[Callable[[int], bool]]:
        """Run calls as `on_nodes` while the block runs; its end cancels them without a wait.

        Errors stay in the nodes' logs. Yields whether the call on a node, by its index in `nodes`,
        has ended, or its worker is lost.
        """

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
        left_s: Callable[[], float] = no_end,
    ) -> Iterator[tuple[int, Result]]:
        """Run `function` on every item, spread over all nodes; a pool grows as needed.

        Only a few items per thread are submitted at a time. `function` and `check` are as for
        `on_nodes`. No item begins that may take longer, by the longest one so far, than `left_s()`.
        Yields `(index, result)` in the order of completion.

        Raises:
            LeaseEndsError: Items are left that take longer.
            WorkerLostError: The workers of an item died more often than twice.
            Exception: Error of `function`, raised immediately.
        """


class OneNode(NodeCalls):
    """The node of this thread's call; this process makes the calls."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._node = Node(name=_name(), address="", host=_LOOPBACK, index=0)

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = no_check
    ) -> tuple[Node, ...]:
        """Return the node, whatever `count` is."""
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
        """See `NodeCalls.beside`; yields that the call has ended: no other process needs it."""
        del function, arguments, nodes
        yield lambda _: True

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = no_check,
        left_s: Callable[[], float] = no_end,
    ) -> Iterator[tuple[int, Result]]:
        """See `NodeCalls.map`; if the node dies, the driver retries the whole trial."""
        longest_s = 0.0
        for index, item in enumerate(items):
            if longest_s > left_s():
                raise lease_ends(len(items) - index, longest_s)
            seconds, result = _called(timed, (function, item), check)
            longest_s = max(longest_s, seconds)
            yield index, result


def _called(
    function: Callable[..., Result], arguments: tuple[Any, ...], check: Callable[[], None]
) -> Result:
    """Call a function, while this thread checks whether to continue; otherwise it is abandoned."""
    stopped = threading.Event()

    def is_wanted() -> bool:
        return not stopped.is_set()

    context = copy_context()
    with ThreadPoolExecutor(1, "headrace-trial") as pool:  # its exit waits for the call
        call = pool.submit(context.run, call_while, is_wanted, function, *arguments)
        try:
            while not wait([call], _CHECK_S).done:
                if not wanted():
                    raise LeaseLostError("The suite's driver has ended, or cancelled this trial")
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
