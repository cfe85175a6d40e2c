"""XXH3 checksums of files, and copies that are checksummed on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

CHUNK_BYTES = 256 * 2**10
"""Bytes read at once: they stay in a processor's cache until they are hashed and written."""


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
    state = xxhash.xxh3_128()
    num_bytes = 0
    try:
        with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
            for chunk in _chunks(reader):
                state.update(chunk)
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
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    while True:
        num_bytes = file.readinto(buffer)  # type: ignore[attr-defined]
        if not num_bytes:
            return
        yield view[:num_bytes]


def _write_all(writer: BinaryIO, chunk: memoryview) -> None:
    written = 0
    while written < len(chunk):
        written += writer.write(chunk[written:])
