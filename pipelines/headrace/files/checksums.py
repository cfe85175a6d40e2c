"""XXH3 checksums of files, and copies with a checksum computed on the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import xxhash

CHUNK_BYTES = 2 * 2**20
"""Bytes read at once; they fit into a processor's cache until they are written."""


def file_xxh3_128(path: Path, tick: Callable[[int], None] | None = None) -> str:
    """Return the XXH3 of a whole file, 128 bits, 32 hexadecimal digits.

    `tick` gets the bytes of every chunk read, and may raise to stop.
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
    """Copy a file and compute its checksum on the way; see `write_verified`."""
    with source.open("rb", buffering=0) as reader:
        return write_verified(_chunks(reader), target, tick)


def write_verified(
    chunks: Iterable[memoryview], target: Path, tick: Callable[[int], None] | None = None
) -> tuple[int, str]:
    """Write chunks; return their bytes and XXH3, 128 bits, hexadecimal. `target` is then durable.

    The caller compares the checksum with the expected one and gives `target` its final name. A
    copy that fails leaves no `target` behind. `tick` gets the bytes of every chunk written, and
    may raise to stop. A chunk is used before the next one is requested.
    """
    state, num_bytes = xxhash.xxh3_128(), 0
    try:
        with target.open("wb", buffering=0) as file:
            for chunk in chunks:
                state.update(chunk)
                written = 0
                while written < len(chunk):
                    written += file.write(chunk[written:])
                num_bytes += len(chunk)
                if tick is not None:
                    tick(len(chunk))
            os.fsync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return num_bytes, state.hexdigest()


def _chunks(file: BinaryIO) -> Iterator[memoryview]:
    chunk = memoryview(bytearray(CHUNK_BYTES))
    while num_bytes := file.readinto(chunk):  # type: ignore[attr-defined]
        yield chunk[:num_bytes]
