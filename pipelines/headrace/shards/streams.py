"""Bytes of one array on their way into a shard: gathered, and put on the disk in large pieces."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from headrace.errors import ShardError
from headrace.storage.huge_pages import HUGE_PAGE, HugePages

Buffer: TypeAlias = "bytes | memoryview"
"""Bytes of one or more samples; a view is one-dimensional and of bytes."""

MEMORY_BYTES = 32 * 2**20
"""Bytes of an array that are kept in memory; beyond, all go to a file without a name."""
PIECE_BYTES = 2**20
"""Bytes that are written at once, small enough to be in the processor's cache still."""
_JOINED_BYTES = 16 * 2**10  # smaller buffers are joined first
_MAX_BUFFERS = 512  # at most 1024 can be written by one call


class Stream:
    """Gathers the bytes of an array.

    Args:
        folder: Where the file without a name is made, when there are more bytes than fit in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.num_bytes = 0
        self._folder = folder
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._descriptor = -1
        self._offset = 0
        self._owned = False
        self._limit = MEMORY_BYTES
        self._written: Callable[[Buffer], object] | None = None
        self._unprepared = range(0)

    def direct(
        self,
        descriptor: int,
        offset: int,
        written: Callable[[Buffer], object] | None,
        file_bytes: int = 0,
    ) -> None:
        """Write to a place in a file from now on, in small pieces.

        Args:
            descriptor: The open file.
            offset: Place of the first byte.
            written: Called with all bytes in order.
            file_bytes: Bytes that the file will have, about, when nothing was written to it so
                far; in memory it comes to lie in huge pages then.
        """
        self._descriptor, self._offset, self._written = descriptor, offset, written
        self._limit = PIECE_BYTES
        self._pages = HugePages(descriptor)
        self._unprepared = range(
            offset // HUGE_PAGE * HUGE_PAGE,
            file_bytes // HUGE_PAGE * HUGE_PAGE,
            HUGE_PAGE,
        )

    def extend(self, items: Sequence[Buffer], num_bytes: int) -> None:
        """Add buffers, which must not change afterwards, of so many bytes in all.

        Raises:
            OSError: The disk is full, or failed.
        """
        if num_bytes < _JOINED_BYTES * len(items):
            items = [b"".join(items)]
        for item in items:
            self._waiting.append(item)
            self.num_bytes += len(item)
            self._waiting_bytes += len(item)
            if self._waiting_bytes >= self._limit or len(self._waiting) >= _MAX_BUFFERS:
                self._relieve()

    def extend_now(self, content: Buffer) -> None:
        """Add bytes that may change afterwards.

        Raises:
            OSError: The disk is full, or failed.
        """
        if self._descriptor < 0:
            content = bytes(content)
        self.extend([content], len(content))
        self.flush()

    def hold(self, content: bytes) -> None:
        """Keep bytes in memory whatever their size."""
        self._waiting.append(content)
        self.num_bytes += len(content)

    def flush(self) -> None:
        """Write what is waiting, when there is a file.

        Raises:
            OSError: The disk is full, or failed.
        """
        if self._descriptor < 0 or not self._waiting:
            return
        start = self._offset + self.num_bytes - self._waiting_bytes
        while self._unprepared and self._unprepared[0] < start + self._waiting_bytes:
            self._pages.prepare(self._unprepared[0])
            self._unprepared = self._unprepared[1:]
        done = os.pwritev(self._descriptor, self._waiting, start)
        if done < self._waiting_bytes:  # cut short, as by a disk that is about to be full
            write_all(self._descriptor, b"".join(self._waiting)[done:], start + done)
        if self._written is not None:
            for item in self._waiting:
                self._written(item)
        self._waiting.clear()
        self._waiting_bytes = 0

    def blocks(self, block_bytes: int) -> Iterator[bytes]:
        """All bytes, so many at a time."""
        if self._descriptor < 0:
            self._waiting = [b"".join(self._waiting)]
            whole = memoryview(self._waiting[0])
            for start in range(0, self.num_bytes, block_bytes):
                yield bytes(whole[start : start + block_bytes])
            return
        self.flush()
        for start in range(0, self.num_bytes, block_bytes):
            length = min(block_bytes, self.num_bytes - start)
            yield read_all(self._descriptor, length, self._offset + start)

    def is_at(self, descriptor: int, offset: int) -> bool:
        """Whether the bytes are at that place of that file already."""
        return (descriptor, offset) == (self._descriptor, self._offset)

    def copy_to(self, descriptor: int, offset: int) -> None:
        """Put all bytes at a place of another file.

        Raises:
            OSError: The disk is full, or failed.
        """
        for block in self.blocks(PIECE_BYTES):
            write_all(descriptor, block, offset)
            offset += len(block)

    def close(self) -> None:
        """Forget the bytes."""
        if self._owned:
            os.close(self._descriptor)
        self._owned, self._descriptor = False, -1
        self._waiting.clear()

    def _relieve(self) -> None:
        if self._descriptor >= 0:
            self.flush()
        elif self._waiting_bytes >= self._limit:
            with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                self._descriptor, self._owned = os.dup(file.fileno()), True
            self._limit = PIECE_BYTES
            self.flush()
        else:
            self._waiting = [b"".join(self._waiting)]


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of `content` at `offset`.

    Raises:
        OSError: The disk is full, or failed.
    """
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def read_all(descriptor: int, num_bytes: int, offset: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        ShardError: The file ends before.
    """
    content = os.pread(descriptor, num_bytes, offset)
    while len(content) < num_bytes:
        more = os.pread(descriptor, num_bytes - len(content), offset + len(content))
        if not more:
            missing = num_bytes - len(content)
            raise ShardError(f"A file that is being packed ends {missing:,} bytes too early")
        content += more
    return content
