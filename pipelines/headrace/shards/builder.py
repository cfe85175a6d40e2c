"""Builds one shard block by block, in bounded memory; whole or not at all.

The bytes of the first field go straight to their place in the file. Where that place is, and what
HDF5 writes before it, follows from the sizes expected; the same samples give the same file when the
sizes turn out different, only with more copying.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.shards import format as names
from headrace.shards.columns import Block, Columns, Expected
from headrace.shards.placing import ArraySpec, Feed, GuardedFile, SparseImage, place_arrays
from headrace.shards.streams import Stream, read_all, write_all
from headrace.storage.atomic import fsync_folder
from headrace.storage.manifest import FieldInfo
from headrace.storage.room import told_when_full

TEMPORARY_SUFFIX = ".tmp"
"""Ending of files that are being written; they begin with a dot."""

_HASHED_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """What is now on disk."""

    num_bytes: int
    """Size of the file."""
    xxh3_128: str
    """XXH3 checksum of the file, 128 bits, hexadecimal."""


class ShardBuilder:
    """Takes blocks of samples; leaving its context without `finish` leaves nothing behind.

    Args:
        path: The shard to be; its folder must exist.
        split: Split of all samples.
        fields: Fields of a sample, in the order of the manifest.
        expected: Sizes, as far as they are known.

    Raises:
        StorageFullError: There is no room.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        fields: Sequence[FieldInfo],
        expected: Expected | None = None,
    ) -> None:
        self.path = path
        self._split = split
        self._columns = Columns(path.parent, fields)
        self._has_codec = any(info.codec != "none" for info in fields)
        self._hash = xxhash.xxh3_128()
        self._head: bytes | None = None
        self._specs: list[ArraySpec] = []
        self._temporary = self._new_name()
        with told_when_full(path.parent, 0):
            self._file = _opened(self._temporary)
        try:
            if expected is not None and not self._has_codec:
                self._begin(expected)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ShardBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._columns.num_samples

    def add(self, block: Block) -> None:
        """Add samples.

        Raises:
            StorageFullError: There is no room.
        """
        with told_when_full(self.path.parent, self._columns.num_bytes):
            self._columns.add(block)

    def finish(self) -> WrittenShard:
        """Make the shard durable and give it its name.

        Raises:
            StorageFullError: There is no room; nothing is left behind.
        """
        with told_when_full(self.path.parent, self._columns.num_bytes):
            written = self._compressed() if self._has_codec else self._plain()
            os.fsync(self._file)
            self._temporary.replace(self.path)
            fsync_folder(self.path.parent)
        return written

    def close(self) -> None:
        """Remove what is not finished."""
        self._columns.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._temporary.unlink(missing_ok=True)

    def _begin(self, expected: Expected) -> None:
        """Write the first field where it will lie, if sizes are as expected."""
        image, places = self._skeleton(expected)
        offset = places.get(self._columns.first_key)
        if offset is not None:
            self._head = image.head(offset)
            self._hash.update(self._head)
            self._columns.first.direct(self._file, offset, self._hash.update, image.size)

    def _plain(self) -> WrittenShard:
        columns = self._columns
        image, places = self._skeleton()
        first = places.get(columns.first_key, 0)
        held = self._head is not None and self._head == image.head(first)
        if self._head is not None and len(self._head) != first:
            self._move(first)
        for key, stream in columns.streams():
            if key in places and not stream.is_at(self._file, places[key]):
                stream.copy_to(self._file, places[key])
            stream.flush()
        for offset, piece in image.pieces():
            write_all(self._file, piece, offset)
        os.ftruncate(self._file, image.size)
        return self._sealed(image.size, first + columns.first.num_bytes if held else 0)

    def _compressed(self) -> WrittenShard:
        guarded = GuardedFile(self._file)
        feeds = {
            f"{names.FIELDS_GROUP}/{info.name}": _feed(info, self._columns.field(info.name))
            for info in self._columns.fields
            if info.codec != "none"
        }
        places = place_arrays(guarded, self._split, self._columns.specs(), feeds)
        for key, stream in self._columns.streams():
            if key in places:
                stream.copy_to(self._file, places[key])
        return self._sealed(os.fstat(self._file).st_size, 0)

    def _skeleton(self, expected: Expected | None = None) -> tuple[SparseImage, dict[str, int]]:
        """What HDF5 writes, and where the arrays lie; made once when the sizes hold."""
        specs = self._columns.specs(expected)
        if self._specs != specs:
            self._specs, self._image = specs, SparseImage()
            self._places = place_arrays(self._image, self._split, specs)
        return self._image, self._places

    def _sealed(self, num_bytes: int, hashed_bytes: int) -> WrittenShard:
        """Checksum the file, from where it was not hashed while it was written."""
        state = self._hash if hashed_bytes else xxhash.xxh3_128()
        for start in range(hashed_bytes, num_bytes, _HASHED_BYTES):
            length = min(_HASHED_BYTES, num_bytes - start)
            state.update(read_all(self._file, length, start))
        return WrittenShard(num_bytes=num_bytes, xxh3_128=state.hexdigest())

    def _move(self, offset: int) -> None:
        """Begin a new file, where the first field lies at another place."""
        old_file, old_name = self._file, self._temporary
        self._temporary = self._new_name()
        self._file = _opened(self._temporary)
        try:
            self._columns.first.copy_to(self._file, offset)
            self._columns.first.direct(self._file, offset, None)
        finally:
            os.close(old_file)
            old_name.unlink(missing_ok=True)

    def _new_name(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _feed(info: FieldInfo, stream: Stream) -> Feed:
    row_bytes = math.prod(info.shape) * np.dtype(info.dtype).itemsize

    def feed(num_rows: int) -> Iterator[NDArray[Any]]:
        for block in stream.blocks(max(1, num_rows * row_bytes)):
            yield np.frombuffer(block, dtype=info.dtype).reshape(-1, *info.shape)

    return feed
