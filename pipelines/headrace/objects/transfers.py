"""Many calls at once in threads with their results in order, and bytes counted as they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from typing import TypeVar

from fsspec.callbacks import Callback

from headrace.objects.protocol import Tick

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
    `look` is called every second while a result is waited for, and may raise to stop.
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


class Sent(Callback):  # type: ignore[misc]
    """Counts the bytes of an upload in the threads that send, and stops it there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False
        self.position = 0
        self._told = 0

    def restart(self) -> None:
        """Begin with the first byte."""
        self.position = 0
        self.relative_update(0)

    def relative_update(self, inc: int = 1) -> None:
        """Count bytes; how fsspec tells of them."""
        if self.is_stopped:
            raise InterruptedError("the upload was stopped")
        self.position += inc

    def counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks, counted as they are taken."""
        for chunk in chunks:
            self.relative_update(len(chunk))
            yield chunk

    def tell(self, tick: Tick | None) -> None:
        """Call `tick` with the bytes since the last time; those sent again count once."""
        new = max(self.position - self._told, 0)
        self._told += new
        if tick is not None:
            tick(new)


def _result(future: Future[Result], look: Callable[[], None] | None) -> Result:
    while look is not None and not wait([future], timeout=_LOOK_S).done:
        look()
    return future.result()
