"""Many calls at once in threads, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_S = 1.0


def in_order(
    pool: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    ahead: int,
    look: Callable[[], None] | None = None,
) -> Iterator[Result]:
    """Results of a function in the order of its items, `ahead` of them under way or waiting.

    When it ends early, by an error or because nobody asks for more, what has begun is waited for.

    Args:
        pool: Runs the function.
        function: Called with each item in a thread of the pool.
        items: The items; taken as room is made.
        ahead: Results that are under way or wait to be taken.
        look: Called every second while the next result is waited for; may raise to stop.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= ahead:
                yield _result(waiting.popleft(), look)
        while waiting:
            yield _result(waiting.popleft(), look)
    finally:
        for future in waiting:
            future.cancel()
        wait(waiting)


def _result(future: Future[Result], look: Callable[[], None] | None) -> Result:
    while look is not None and not wait([future], timeout=_LOOK_S).done:
        look()
    return future.result()
