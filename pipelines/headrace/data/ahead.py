"""Reads ahead in threads: while one batch is worked on, the next ones are made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import cycle
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

Begin = Callable[[Sequence[int]], Callable[[int], T]]
"""Given numbers, says how each is read."""


def read_ahead(
    begin: Begin[T], numbers: range, depth: int, together: int = 1
) -> Generator[T, None, None]:
    """What is read for each number, in order; the threads end with the iterator.

    Threads of one core each take whole results: they never wait for one another within one, as
    the threads that torch shares a single copy among do, which is slow when cores are busy.

    Args:
        begin: Given numbers, says how each is read. It is asked by each thread for a share of the
            numbers, which that thread reads in order; what is raised there is raised here, in its
            turn.
        numbers: Numbers to read.
        depth: Groups of results that are made or wait, at most, by half as many threads; 0 reads
            each number here, when it is asked for.
        together: Results of a group, which are handed over at once: waking a thread takes as long
            as copying a few hundred KB.
    """
    if depth == 0:
        yield from map(begin(numbers), numbers)
        return
    groups = [numbers[first : first + together] for first in range(0, len(numbers), together)]
    num_readers = -(-depth // 2)
    num_threads = torch.get_num_threads()
    readers = [
        _Reader(begin, groups[first::num_readers], (depth + first) // num_readers)
        for first in range(num_readers)
    ]
    torch.set_num_threads(num_threads)  # the readers set it for themselves, and for new threads
    try:
        for _, reader in zip(groups, cycle(readers), strict=False):
            yield from reader.next()
    finally:
        for reader in readers:
            reader.stop()


class _Reader(Generic[T]):
    """Reads some of the groups, `depth` ahead."""

    def __init__(
        self,
        begin: Begin[T],
        groups: Sequence[range],
        depth: int,
    ) -> None:
        self._begin = begin
        self._groups = groups
        self._done: SimpleQueue[tuple[deque[T], BaseException | None]] = SimpleQueue()
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="headrace-load", daemon=True)
        self._thread.start()
        self._started.wait()
        for _ in range(depth):
            self._wanted.put(True)

    def next(self) -> Iterator[T]:
        results, error = self._done.get()
        if error is None:
            self._wanted.put(True)
        while results:
            yield results.popleft()  # the caller alone keeps it: its memory is used again
        if error is not None:
            raise error

    def stop(self) -> None:
        self._wanted.put(False)
        self._thread.join()

    def _work(self) -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # without it, this thread would take what another one sets next
        self._started.set()
        results: deque[T] = deque()
        try:
            read = self._begin([number for group in self._groups for number in group])
            for group in self._groups:
                if not self._wanted.get():
                    return
                results = deque()
                for number in group:
                    results.append(read(number))
                self._done.put((results, None))
        except BaseException as error:  # noqa: BLE001  raised again in `next`
            self._done.put((results, error))
