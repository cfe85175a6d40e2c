"""Reads ahead in threads: while one batch is worked on, the next ones are made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import cycle, islice
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
G = TypeVar("G")

_PAYS = 0.25  # work for the time of reading, from which reading ahead pays
_STILL_PAYS = 0.1
_FEW = 8


def read_ahead(
    begin: Callable[[Sequence[G]], Callable[[G], T]], parts: Sequence[G], depth: int
) -> Generator[T, None, None]:
    """What is read for each part, in order; the threads end with the iterator.

    Threads of one core each read whole parts: they never wait for one another within one, as the
    threads that torch shares a single copy among do, which is slow when cores are busy. A part
    should take 100 us at least: that is what waking a thread takes.

    Each thread asks `begin` how to read its share of the parts, which it then reads in order; what
    is raised there is raised here, in its turn. At most `depth` results are made or wait, by half
    as many threads; 0 reads each part here, when it is asked for.
    """
    if depth == 0:
        yield from map(begin(parts), parts)
        return
    num_threads = torch.get_num_threads()
    readers = [_Reader(begin, parts[first :: -(-depth // 2)]) for first in range(-(-depth // 2))]
    torch.set_num_threads(num_threads)  # the readers set it for themselves, and for new threads
    reads = (reader.read(part) for part, reader in zip(parts, cycle(readers), strict=False))
    try:
        waiting = deque(islice(reads, depth))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(islice(reads, 1))
            yield result
    finally:
        for reader in readers:
            reader.close()


def read_ahead_while_it_pays(
    begin: Callable[[Sequence[G]], Callable[[G], T]], parts: Sequence[G], depth: int, payoff: Payoff
) -> Generator[T, None, None]:
    """As `read_ahead`, as long as that pays; reading a part again must give the same."""
    left = parts
    while left:
        was_ahead, num_read = payoff.is_ahead, 0
        asked = time.perf_counter()
        with closing(read_ahead(begin, left, depth if was_ahead else 0)) as results:
            for result in results:
                began = time.perf_counter()
                yield result
                ended = time.perf_counter()
                payoff.saw(began - asked, ended - began)
                asked = ended
                num_read += 1
                if payoff.is_ahead != was_ahead:
                    break
        left = left[num_read:]


class Payoff:
    """Compares the work on what was read with the time that reading takes.

    Without work there is nothing to overlap with, and what waits only drives out of the processor's
    caches what is read next. Copies out of memory are then faster one at a time, by all cores, into
    memory that was just used.

    Attributes:
        is_ahead: Whether reading ahead pays, as far as seen; it does until something else is seen.
    """

    def __init__(self) -> None:
        self.is_ahead = True
        self._worked_s = 0.0
        self._read_s = 0.0
        self._num_parts = 0
        self._num_enough = _FEW

    def saw(self, read_s: float, worked_s: float) -> None:
        """Count a part: the time to read or to wait for it, and until the next was asked for."""
        self._read_s += read_s
        self._worked_s += worked_s
        self._num_parts += 1
        if self._num_parts == self._num_enough:
            self._decide()

    def _decide(self) -> None:
        least = _STILL_PAYS if self.is_ahead else _PAYS
        pays = self._worked_s >= least * self._read_s
        if pays != self.is_ahead:
            self.is_ahead = pays
            self._num_enough *= 2  # what was read ahead is lost at a change: it must not come often
        self._worked_s = self._read_s = 0.0
        self._num_parts = 0


class _Reader(Generic[G, T]):
    def __init__(
        self, begin: Callable[[Sequence[G]], Callable[[G], T]], parts: Sequence[G]
    ) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-load")
        self._pool.submit(_take_one_core).result()
        self._begun = self._pool.submit(begin, parts)

    def read(self, part: G) -> Future[T]:
        return self._pool.submit(lambda: self._begun.result()(part))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _take_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # without it, this thread would take what another one sets next
