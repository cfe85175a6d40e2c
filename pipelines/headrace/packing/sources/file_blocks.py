"""Whole files as blocks: of a folder, or of any place that gives their bytes one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from headrace.packing.listed import Listed, Times
from headrace.packing.samples import BLOCK_BYTES, BLOCK_SAMPLES, Content
from headrace.packing.slots import Slots


class GivenBlock:
    """Files whose bytes come as they are given.

    Args:
        files: The files.
        read: Gives their bytes.
    """

    def __init__(self, files: Listed, read: Callable[[], Iterable[Content]]) -> None:
        self._files = files
        self._read = read

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each, when it was listed."""
        return self._files.sizes

    def beginning(self, num_bytes: int) -> bytes | None:
        """Not looked at."""
        del num_bytes
        return None

    def fill(self, slots: Slots) -> bool:
        """Their bytes do not come into given memory."""
        del slots
        return False

    def contents(self) -> list[Content]:
        """Their bytes."""
        return list(self._read())


class FolderBlock(GivenBlock):
    """Files of a local folder.

    Args:
        files: The files; the version of each is its time in nanoseconds.
        read: Gives their bytes, or tells why not.
        folder: The folder.
    """

    def __init__(self, files: Listed, read: Callable[[], Iterable[Content]], folder: Path) -> None:
        super().__init__(files, read)
        self._folder = folder

    def beginning(self, num_bytes: int) -> bytes | None:
        """The first bytes of the first; None when it cannot be read."""
        try:
            with open(self._folder / self._files.paths[0], "rb", buffering=0) as file:
                return file.read(num_bytes)
        except OSError:
            return None

    def fill(self, slots: Slots) -> bool:
        """Read them into slots; whether they are there and as they were listed."""
        files = self._files
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return slots.read(folder, files.paths, Times.of(files.versions).times_ns)
        finally:
            os.close(folder)


def given_blocks(files: Listed, contents: Iterator[Content]) -> Iterator[GivenBlock]:
    """Blocks of files whose bytes come in order."""
    for start, stop in cuts(files.sizes):
        part = files[start:stop]
        yield GivenBlock(part, lambda part=part: islice(contents, len(part)))  # type: ignore[misc]


def cuts(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First file, and the one behind the last, of each block.

    Args:
        sizes: Bytes of each file.
    """
    ends = np.cumsum(np.array(sizes, dtype=np.int64))
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + BLOCK_BYTES)) + 1
        stop = min(full, start + BLOCK_SAMPLES, len(sizes))
        yield start, stop
        start = stop
