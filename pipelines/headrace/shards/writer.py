"""Writes one shard, block by block in bounded memory: completely or not at all.

The bytes of the first field go directly to their position in the file. That position, and HDF5's
content before it, follow from the expected sizes. If these are wrong, the position is still right,
because nothing before the first field has a size that depends on them; the file is then read again
for its checksum.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from headrace.files.atomic import fsync
from headrace.files.machine import told_when_full
from headrace.files.manifest import FieldInfo
from headrace.shards.columns import Block, DirectStream, ExpectedSizes, ShardArrays, data_key
from headrace.shards.shard_layout import Skeleton, make_skeleton, place_arrays, read_all, write_all

_TEMPORARY_SUFFIX = ".tmp"  # of unfinished files, whose names begin with a dot
_HASHED_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A finished file."""

    num_bytes: int
    xxh3_128: str
    """XXH3 checksum of the file, 128 bits, hexadecimal."""


class ShardBuilder:
    """Takes blocks of samples; leaving its context without `finish` removes everything.

    The folder of `path` must exist; `fields` are in the order of the manifest; `expected` are the
    sizes, as far as they are known. All methods raise a `StorageFullError` if the disk is full.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        fields: Sequence[FieldInfo],
        expected: ExpectedSizes | None = None,
    ) -> None:
        self.path = path
        self._split = split
        self._arrays = ShardArrays(path.parent, fields)
        self._compressed = [info for info in fields if info.codec != "none"]
        self._hash = xxhash.xxh3_128()
        self._expected: Skeleton | None = None
        name = f".{path.name}.{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}"
        self._temporary = path.with_name(name)
        with told_when_full(path.parent, 0):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self._temporary, flags, 0o666)
        try:
            if expected is not None and not self._compressed:
                self._begin(expected)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ShardBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._arrays.num_samples

    def add(self, block: Block) -> None:
        """Add samples."""
        with told_when_full(self.path.parent, self._arrays.num_bytes):
            self._arrays.add(block)

    def finish(self) -> WrittenShard:
        """Sync the shard and rename it to its name."""
        with told_when_full(self.path.parent, self._arrays.num_bytes):
            written = self._write_compressed() if self._compressed else self._write_plain()
            os.fsync(self._file)
            self._temporary.replace(self.path)
            fsync(self.path.parent)
        return written

    def close(self) -> None:
        """Remove unfinished files."""
        self._arrays.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._temporary.unlink(missing_ok=True)

    def _begin(self, expected: ExpectedSizes) -> None:
        """Write the first field at its position, if sizes are as expected."""
        skeleton = make_skeleton(self._split, self._arrays.specs(expected))
        offset = skeleton.places.get(data_key(self._arrays.fields[0]))
        if offset is not None:
            self._expected = skeleton
            self._hash.update(skeleton.head)
            self._arrays.direct = DirectStream(self._file, offset, self._hash.update)

    def _write_plain(self) -> WrittenShard:
        arrays, skeleton = self._arrays, self._expected
        specs = arrays.specs()
        if skeleton is None or skeleton.arrays != specs:
            skeleton = make_skeleton(self._split, specs)
        arrays.write(self._file, skeleton.places)
        for start, piece in skeleton.pieces:
            write_all(self._file, piece, start)
        os.ftruncate(self._file, skeleton.num_bytes)
        if arrays.direct is None or self._expected is None or self._expected.head != skeleton.head:
            return self._sealed(skeleton.num_bytes)
        return self._sealed(skeleton.num_bytes, arrays.direct.offset + arrays.direct.num_bytes)

    def _write_compressed(self) -> WrittenShard:
        arrays = self._arrays
        feeds = {data_key(info): arrays.feed(info) for info in self._compressed}
        arrays.write(self._file, place_arrays(self._file, self._split, arrays.specs(), feeds))
        return self._sealed(os.fstat(self._file).st_size)

    def _sealed(self, num_bytes: int, hashed_bytes: int = 0) -> WrittenShard:
        """Return the file's checksum; only the part not hashed during writing is read."""
        state = self._hash if hashed_bytes else xxhash.xxh3_128()
        for start in range(hashed_bytes, num_bytes, _HASHED_BYTES):
            length = min(_HASHED_BYTES, num_bytes - start)
            state.update(read_all(self._file, length, start))
        return WrittenShard(num_bytes=num_bytes, xxh3_128=state.hexdigest())


def remove_temporary(folder: Path) -> int:
    """Remove files of killed writers in `folder`, which must have no writer; return how many."""
    left = list(folder.glob(f".*{_TEMPORARY_SUFFIX}"))
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)
