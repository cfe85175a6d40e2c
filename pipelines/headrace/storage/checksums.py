"""XXH3 checksums of files, and copies that are checksummed on the way."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

from headrace.storage.huge_pages import HUGE_PAGE, HugePages

CHUNK_BYTES = HUGE_PAGE
"""Bytes read at once, a huge page: they stay in a processor's cache until they are written."""


def file_xxh3_128(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """Checksum of a whole file.

    Args:
        path: The file.
        tick: Called with the bytes of every chunk read; may raise to stop.

    Returns:
        XXH3, 128 bits, 32 hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
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

    Other threads run meanwhile. The caller compares the checksum with the one it expects and gives
    `target` its final name. A copy that fails leaves no `target` behind.

    Args:
        source: File to read.
        target: File to create or overwrite; its folder must exist.
        tick: Called with the bytes of every chunk copied; may raise to stop.

    Returns:
        Bytes copied and their XXH3 checksum, 128 bits, hexadecimal.

    Raises:
        OSError: Reading or writing failed, as with a full disk (`errno.ENOSPC`).
    """
    with source.open("rb", buffering=0) as reader:
        return write_verified(_chunks(reader), target, tick)


def write_verified(
    chunks: Iterable[memoryview], target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Write chunks into a file and checksum them on the way; see `copy_verified`.

    Args:
        chunks: The content; each chunk is used before the next one is asked for.
        target: File to create or overwrite; its folder must exist.
        tick: Called with the bytes of every chunk written; may raise to stop.

    Returns:
        Bytes written and their XXH3 checksum, 128 bits, hexadecimal.

    Raises:
        OSError: Writing failed.
    """
    state = xxhash.xxh3_128()
    num_bytes = 0
    try:
        with target.open("w+b", buffering=0) as writer:
            pages = HugePages(writer.fileno())
            for chunk in chunks:
                state.update(chunk)
                if len(chunk) == HUGE_PAGE and num_bytes % HUGE_PAGE == 0:
                    pages.prepare(num_bytes)
                _write_all(writer, chunk)
                num_bytes += len(chunk)
                if tick is not None:
                    tick(len(chunk))
            os.fsync(writer.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return num_bytes, state.hexdigest()


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


def _write_all(writer: BinaryIO, chunk: memoryview) -> None:
    written = 0
    while written < len(chunk):
        written += writer.write(chunk[written:])
