"""XXH3 checksums of files, and copies that are checksummed on the way."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from headrace.files.huge_pages import AT_ONCE, HUGE_PAGE, BackOff, HugePages

_BACK_OFF = BackOff(slow_s=0.001)  # copying 2 MiB to small pages takes half of that

CHUNK_BYTES = HUGE_PAGE
"""Bytes read at once, a huge page: they stay in a processor's cache until they are written."""


def file_xxh3_128(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """XXH3 of a whole file, 128 bits, 32 hexadecimal digits.

    `tick` is called with the bytes of every chunk read, and may raise to stop.
    """
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        for chunk in _chunks(file):
            state.update(chunk)
            if tick is not None:
                tick(len(chunk))
    return state.hexdigest()


def copy_verified(
    source: Path, target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Copy a file and checksum the bytes on the way; `target` is durable on return.

    The caller compares the checksum with the one it expects and gives `target` its final name. A
    copy that fails leaves no `target` behind.

    Args:
        source: File to read.
        target: File to create or overwrite; its folder must exist.
        tick: Called with the bytes of every chunk copied; may raise to stop.

    Returns:
        Bytes copied and their XXH3 checksum, 128 bits, hexadecimal.
    """
    with source.open("rb", buffering=0) as reader, _Writing(target, tick) as writing:
        chunks = _chunks(reader)
        writing.take_pages(reader, chunks)
        for chunk in chunks:
            writing.write(chunk)
        return writing.finish()


def write_verified(
    chunks: Iterable[memoryview], target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """`copy_verified` of chunks, each of which is used before the next one is asked for."""
    with _Writing(target, tick) as writing:
        for chunk in chunks:
            if len(chunk) == HUGE_PAGE and writing.num_bytes % HUGE_PAGE == 0:
                writing.pages.prepare(writing.num_bytes)
            writing.write(chunk)
        return writing.finish()


class _Writing:
    """A file that is being written and checksummed; none is left when the block raises."""

    def __init__(self, target: Path, tick: Callable[[int], None] | None) -> None:
        self.num_bytes = 0
        self._target = target
        self._tick = tick
        self._file = target.open("w+b", buffering=0)
        self._state = xxhash.xxh3_128()
        self.pages = HugePages(self._file.fileno(), _BACK_OFF)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is not None:
            self._target.unlink(missing_ok=True)

    def write(self, chunk: memoryview) -> None:
        """Append a chunk."""
        self._state.update(chunk)
        written = 0
        while written < len(chunk):
            written += self._file.write(chunk[written:])
        self._moved(len(chunk))

    def take_pages(self, reader: BinaryIO, chunks: Iterator[memoryview]) -> None:
        """Copy what fills huge pages inside the kernel, and checksum it where it then lies.

        That is one pass less than by a buffer, which is taken while there are no huge pages.
        `chunks` reads on in the file to copy.
        """
        size = os.fstat(reader.fileno()).st_size
        while num_pages := min((size - self.num_bytes) // HUGE_PAGE, AT_ONCE):
            start, pages = self.num_bytes, self.pages.prepare(self.num_bytes, num_pages)
            if pages is not None:
                num_pages = len(pages) // HUGE_PAGE
            for number in range(num_pages):
                if pages is None:
                    self.write(next(chunks, memoryview(b"")))
                else:
                    self._splice(reader, pages[number * HUGE_PAGE :][:HUGE_PAGE])
                if self.num_bytes != start + (number + 1) * HUGE_PAGE:
                    return  # a short read, or the file has become shorter
            if not self.pages.is_usable:
                return

    def finish(self) -> tuple[int, str]:
        """Make the file durable; gives its bytes and checksum."""
        if os.fstat(self._file.fileno()).st_size != self.num_bytes:
            self._file.truncate(self.num_bytes)  # less has come than there was room made for
        os.fsync(self._file.fileno())
        return self.num_bytes, self._state.hexdigest()

    def _splice(self, reader: BinaryIO, page: memoryview) -> None:
        moved, now = 0, 1
        while now and moved < len(page):
            now = _sendfile(self._file, reader, len(page) - moved)
            moved += now
        self._state.update(page[:moved])
        self._moved(moved)

    def _moved(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if self._tick is not None and num_bytes:
            self._tick(num_bytes)


def _chunks(file: BinaryIO) -> Iterator[memoryview]:
    chunk = chunk_buffer()
    while num_bytes := file.readinto(chunk):  # type: ignore[attr-defined]
        yield chunk[:num_bytes]


def chunk_buffer() -> memoryview:
    """Memory for one chunk, `(CHUNK_BYTES,) uint8`, in a huge page where the kernel has them."""
    pages = mmap.mmap(-1, CHUNK_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def _sendfile(writer: BinaryIO, reader: BinaryIO, num_bytes: int) -> int:
    """Bytes that were moved inside the kernel; 0 at the end, and where files have no such way."""
    try:
        return os.sendfile(writer.fileno(), reader.fileno(), None, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return 0
