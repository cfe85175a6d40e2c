"""A fleet of the one node that a trial runs on; its calls are made there, by the trial itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from headrace.clusters.cancellable_call import call_while, node_name, wanted
from headrace.clusters.fleet import Fleet, Node
from headrace.errors import LeaseLostError
from headrace.recipe.site import Role

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOPBACK = "127.0.0.1"
_CHECK_S = 0.1

_Arguments = Sequence[tuple[Any, ...]]


def _no_check() -> None:
    """Never cancels."""


class OneNode(Fleet):
    """A `Fleet` without a client: the node of this thread's call.

    Args:
        role: The role, with one node.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self._node = Node(name=_name(), address="", host=_LOOPBACK, index=0)

    def nodes(
        self, count: int, timeout_s: float, *, check: Callable[[], None] = _no_check
    ) -> tuple[Node, ...]:
        """The node; as `Fleet.nodes`."""
        del count, timeout_s
        check()
        return (self._node,)

    def call(self, node: Node, function: Callable[..., Result], *arguments: Any) -> Result:
        """As `Fleet.call`."""
        del node
        return function(*arguments)

    def on_nodes(
        self,
        function: Callable[..., Result],
        arguments: _Arguments,
        nodes: Sequence[Node],
        *,
        check: Callable[[], None] = _no_check,
    ) -> list[Result]:
        """As `Fleet.on_nodes`."""
        del nodes
        return [_called(function, each, check) for each in arguments]

    @contextmanager
    def beside(
        self, function: Callable[..., object], arguments: _Arguments, nodes: Sequence[Node]
    ) -> Iterator[Callable[[int], bool]]:
        """As `Fleet.beside`, but there is nobody whom the node could serve."""
        del function, arguments, nodes
        yield lambda _: True

    def map(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        check: Callable[[], None] = _no_check,
        retries: int = 2,
    ) -> Iterator[tuple[int, Result]]:
        """As `Fleet.map`; what dies with the node is the driver's to try again."""
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
                _check_wanted()
                check()
        finally:
            stopped.set()
        result: Result = call.result()
        return result


def _check_wanted() -> None:
    if not wanted():
        raise LeaseLostError("The driver of the suite has gone, or waits no more")


def _name() -> str:
    try:
        return node_name()
    except ValueError:  # outside of a Dask worker
        return socket.gethostname()
