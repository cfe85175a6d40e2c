"""Stats the files of a folder; in threads where each stat waits for a server, as on NFS."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

Part = tuple[Sequence[str], Sequence[int], Sequence[int]]
"""Paths, bytes and times (nanoseconds since the epoch) of some files."""

_NUM_THREADS = 8
_MAX_WAITING = 128  # parts and open folders at once
_WAITS = 0.25  # share of stats that had to wait, from which on threads pay


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one folder."""

    paths: Sequence[str]
    """What each is called in the listing."""
    entries: Sequence[os.DirEntry[str]]
    """The files; `stat` needs the folder that was listed to be open."""

    def part(self) -> Part:
        """Stat them.

        Raises:
            OSError: One cannot be read.
        """
        found = [entry.stat() for entry in self.entries]
        sizes = [status.st_size for status in found]
        return self.paths, sizes, [status.st_mtime_ns for status in found]


class StatScanner:
    """Stats files as they are found; leaving its context ends its threads."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[Part] | int] = deque()

    def __enter__(self) -> StatScanner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for each in self._waiting:
            if isinstance(each, int):
                os.close(each)

    def add(self, files: Files) -> Iterator[Part]:
        """Stat files of a folder; others that are done may come out."""
        if self._pool is None:
            yield self._part(files)
            return
        self._waiting.append(self._pool.submit(files.part))
        while len(self._waiting) > _MAX_WAITING:
            yield from self._next()

    def close(self, folder: int) -> None:
        """Close a folder as soon as its files are done."""
        if self._waiting:
            self._waiting.append(folder)
        else:
            os.close(folder)

    def rest(self) -> Iterator[Part]:
        """What is left."""
        while self._waiting:
            yield from self._next()

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
