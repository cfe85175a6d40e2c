"""Reads ahead in threads: while one batch is in use, the next ones are read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle, islice
from typing import TypeVar

import torch

T = TypeVar("T")
G = TypeVar("G")

Begin = Callable[[Sequence[G]], Iterator[T]]
"""Returns an iterator over what is read for some of the parts; one thread advances it."""

_PAYS = 0.25  # time of use over time of reading, from which on reading ahead pays
_STILL_PAYS = 0.1
_FEW = 8


def read_ahead(begin: Begin[G, T], parts: Sequence[G], depth: int) -> Generator[T, None, None]:
    """Yield what is read for each part, in order; the threads end with the iterator.

    Each thread has one core and reads whole parts, so threads never wait for each other within a
    part. Torch's own threads share a single copy and do wait, which is slow when cores are busy. A
    part should take at least 100 us: waking a thread takes that long.

    Each thread reads its share of the parts, in order; an error is raised here, in the order of the
    parts. At most `depth` results are being read or wait, by half as many threads; 0 reads each
    part here, when it is requested.
    """
    if depth == 0:
        yield from begin(parts)
        return
    num_threads, count = torch.get_num_threads(), -(-depth // 2)
    pools = [ThreadPoolExecutor(1, thread_name_prefix="headrace-load") for _ in range(count)]
    for pool in pools:
        pool.submit(_take_one_core).result()
    torch.set_num_threads(num_threads)  # threads set it for themselves, and for new threads
    shares = cycle((pool, begin(parts[first::count])) for first, pool in enumerate(pools))
    reads = (pool.submit(next, share) for _, (pool, share) in zip(parts, shares, strict=False))
    try:
        waiting = deque(islice(reads, depth))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(islice(reads, 1))
            yield result
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)


def read_ahead_as(
    way: Callable[[], tuple[Begin[G, T], int]],
    parts: Sequence[G],
    saw: Callable[[float, float], None],
) -> Generator[T, None, None]:
    """Do the same as `read_ahead` with the arguments of `way`, which may change after each part.

    `saw` takes the seconds of waiting for a part, and of its use. After a change, parts that were
    read ahead are read again, which must give the same.
    """
    left = parts
    while left:
        chosen, num_read = way(), 0
        asked = time.perf_counter()
        with closing(read_ahead(chosen[0], left, chosen[1])) as results:
            for result in results:
                began = time.perf_counter()
                yield result
                ended = time.perf_counter()
                saw(began - asked, ended - began)
                asked = ended
                num_read += 1
                if way() != chosen:
                    break
        left = left[num_read:]


def _take_one_core() -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # without it, this thread would take the next value of another thread


class Payoff:
    """Compares the time a reader's results are used with the time that reading takes.

    Without use there is nothing to overlap with, and results that wait only evict the next data
    from the processor's caches. Copies from memory are then faster one at a time, by all cores,
    into memory that was just used.

    Attributes:
        is_ahead: Whether reading ahead pays, by the measured times; True before any measurement.
    """

    def __init__(self) -> None:
        self.is_ahead = True
        self._worked_s = 0.0
        self._read_s = 0.0
        self._num_parts = 0
        self._num_enough = _FEW

    def saw(self, read_s: float, worked_s: float) -> None:
        """Count a part: the time to read or to wait for it, and until the next was requested."""
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
            self._num_enough *= 2  # a change loses what was read ahead: it must be rare
        self._worked_s = self._read_s = 0.0
        self._num_parts = 0
