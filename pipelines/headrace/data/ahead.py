"""Reads ahead in threads: while one batch is worked on, the next ones are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from itertools import cycle
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def read_ahead(
    begin: Callable[[range], Callable[[int], T]], numbers: range, depth: int
) -> Generator[T, None, None]:
    """What is read for each number, in order; the threads end with the iterator.

    Threads of one core each take whole results: they never wait for one another within one, as
    the threads that torch shares a single copy among do, which is slow when cores are busy.

    Args:
        begin: Given numbers, says how each is read. It is asked by each of `depth` threads for a
            share of the numbers, which that thread reads in order; what is raised there is raised
            here, in its turn.
        numbers: Numbers to read.
        depth: Results that are made or wait, at most; 0 reads here, when it is asked for.
    """
    if depth == 0:
        yield from map(begin(numbers), numbers)
        return
    num_threads = torch.get_num_threads()
    readers = [_Reader(begin, numbers[first::depth]) for first in range(depth)]
    torch.set_num_threads(num_threads)  # the readers set it for themselves, and for new threads
    try:
        for _, reader in zip(numbers, cycle(readers), strict=False):
            yield reader.next()
    finally:
        for reader in readers:
            reader.stop()


class _Reader(Generic[T]):
    """Reads some of the numbers, one ahead."""

    def __init__(self, begin: Callable[[range], Callable[[int], T]], numbers: range) -> None:
        self._begin = begin
        self._numbers = numbers
        self._done: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-load", daemon=True)
        self._thread.start()
        self._started.wait()
        self._wanted.put(True)

    def next(self) -> T:
        result, error = self._done.get()
        if error is not None:
            raise error
        self._wanted.put(True)
        return result  # type: ignore[return-value]

    def stop(self) -> None:
        self._wanted.put(False)
        self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)
        self._started.set()
        try:
            read = self._begin(self._numbers)
            for number in self._numbers:
                if not self._wanted.get():
                    return
                self._done.put((read(number), None))
        except BaseException as error:  # noqa: BLE001  raised again in `next`
            self._done.put((None, error))
