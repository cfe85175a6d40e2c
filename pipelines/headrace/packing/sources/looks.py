"""Looks at files in one of three ways, whichever is fastest where they lie.

Where a look takes a round trip to a server, as on NFS and Lustre, threads do it, so that several
are on the way at once. Elsewhere Python lets only one thread work at a time: another process helps
when there are many files, and few are looked at right away.
"""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.packing.sources.stat_process import Files, Part, StatProcess

_NUM_THREADS = 8
_MAX_WAITING = 128  # parts that are looked at, and folders that are open, at once
_WAITS = 0.25  # share of the files that had to be waited for, from which on threads pay
_NUM_PROCESSES = 2  # more than this process can find files for
_PAYS_FROM = 4096  # when it is worth the start of a process, which nobody waits for


class Looks:
    """Looks at files as they are found; leaving its context ends threads and processes."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[Part] | int] = deque()
        self._processes: list[StatProcess] = []
        self._num_files = 0

    def __enter__(self) -> Looks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()
        for each in self._waiting:
            if isinstance(each, int):
                os.close(each)

    def add(self, files: Files) -> Iterator[Part]:
        """Look at files of a folder; others that were looked at meanwhile may come out."""
        if self._pool is not None:
            self._waiting.append(self._pool.submit(files.part))
            while len(self._waiting) > _MAX_WAITING:
                yield from self._next()
            return
        for process in self._helpers(len(files.paths)):
            yield from process.answers(wait=False)
            if process.is_ready and process.ask(files):
                return
        yield self._part(files)

    def close(self, folder: int) -> None:
        """Close a folder once its files were looked at."""
        if self._waiting:
            self._waiting.append(folder)
        else:
            os.close(folder)

    def rest(self) -> Iterator[Part]:
        """What is left."""
        for process in self._processes:
            yield from process.answers(wait=True)
        while self._waiting:
            yield from self._next()

    def _helpers(self, num_files: int) -> list[StatProcess]:
        """Processes that help, which start when there turn out to be many files."""
        before = self._num_files
        self._num_files += num_files
        if before < _PAYS_FROM <= self._num_files:
            others = len(os.sched_getaffinity(0)) - 1
            self._processes = [StatProcess() for _ in range(min(others, _NUM_PROCESSES))]
        return self._processes

    def _part(self, files: Files) -> Part:
        before = _num_waits()
        part = files.part()
        if _num_waits() - before > _WAITS * len(files.paths):
            self._pool = ThreadPoolExecutor(_NUM_THREADS)
        return part

    def _next(self) -> Iterator[Part]:
        first = self._waiting.popleft()
        if isinstance(first, int):
            os.close(first)
        else:
            yield first.result()


def _num_waits() -> int:
    """How often this thread has waited for a server, a disk or another thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
