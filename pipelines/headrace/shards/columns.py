"""What a shard holds while it is built: the bytes of its arrays, and their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.shards import format as names
from headrace.shards.placing import ArraySpec
from headrace.shards.streams import Buffer, Stream
from headrace.storage.manifest import FieldInfo

_JOINED_BYTES = 64 * 2**10  # copying less is faster than hashing in parts
_SOURCE_DATA, _SOURCE_OFFSETS = (f"{names.SOURCE}/{part}" for part in (names.DATA, names.OFFSETS))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Sizes known before the samples are read; the shard is written in one go when they hold."""

    num_samples: int
    """Samples."""
    source_bytes: int
    """Bytes of all source paths in UTF-8."""
    first_bytes: int = 0
    """Bytes of all samples of the first field, when it is ragged."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some samples."""

    ids: NDArray[np.int64]
    """Their numbers, `(num_samples,) int64`."""
    sources: Sequence[bytes]
    """Their source paths in UTF-8."""
    columns: Sequence[Sequence[Buffer]]
    """By field, the bytes of each sample."""
    shapes: Mapping[str, Sequence[tuple[int, ...]]]
    """Shapes of the samples, of ragged fields of arrays."""
    joined: Buffer | None = None
    """The bytes of the first field of all samples, where these lie one after the other; they may
    change once the block was added."""


class Columns:
    """Arrays of one shard.

    Args:
        folder: Where files without a name are made for what does not fit in memory.
        fields: Fields of a sample, in the order of the manifest.
    """

    def __init__(self, folder: Path, fields: Sequence[FieldInfo]) -> None:
        self.fields = tuple(fields)
        self.num_samples = 0
        self._folder = folder
        self._data = {info.name: Stream(folder) for info in fields}
        self._sources = Stream(folder)
        zero = np.zeros(1, dtype=np.int64)
        self._source_ends = [zero]
        self._ends = {info.name: [zero] for info in fields if info.layout == "ragged"}
        self._shapes: dict[str, list[NDArray[np.int64]]] = {
            info.name: [] for info in fields if info.ndim is not None
        }
        self._ids: list[NDArray[np.int64]] = []
        self._checksums: list[NDArray[np.uint64]] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the fields."""
        return sum(stream.num_bytes for stream in self._data.values())

    @property
    def first(self) -> Stream:
        """Bytes of the first field."""
        return self._data[self.fields[0].name]

    @property
    def first_key(self) -> str:
        """Array of the bytes of the first field."""
        return _data_key(self.fields[0])

    def field(self, name: str) -> Stream:
        """Bytes of a field."""
        return self._data[name]

    def add(self, block: Block) -> None:
        """Add samples.

        Raises:
            OSError: The disk is full, or failed.
        """
        self._checksums.append(checksums(block.columns))
        for number, (info, column) in enumerate(zip(self.fields, block.columns, strict=True)):
            sizes = _sizes(info, column)
            if info.layout == "ragged":
                self._ends[info.name].append(_ends(self._data[info.name], sizes))
            if block.joined is not None and number == 0:
                self._data[info.name].extend_now(block.joined)
            else:
                self._data[info.name].extend(column, int(sizes.sum()))
        for name, shapes in block.shapes.items():
            self._shapes[name].append(np.array(shapes, dtype=np.int64).reshape(len(shapes), -1))
        sizes = _lengths(block.sources)
        self._source_ends.append(_ends(self._sources, sizes))
        self._sources.extend(block.sources, int(sizes.sum()))
        self._ids.append(block.ids)
        self.num_samples += len(block.ids)

    def specs(self, expected: Expected | None = None) -> list[ArraySpec]:
        """Arrays in the order in which they lie in the file.

        Args:
            expected: Take these sizes, not those of the samples that were added.
        """
        count = expected.num_samples if expected else self.num_samples
        found: list[ArraySpec] = []
        for info in self.fields:
            found += self._specs_of(info, count, expected)
        source_bytes = expected.source_bytes if expected else self._sources.num_bytes
        return [
            *found,
            ArraySpec(key=names.SAMPLE_ID, dtype="int64", shape=(count,)),
            ArraySpec(key=names.CHECKSUM, dtype="uint64", shape=(count,)),
            ArraySpec(key=_SOURCE_DATA, dtype="uint8", shape=(source_bytes,)),
            ArraySpec(key=_SOURCE_OFFSETS, dtype="int64", shape=(count + 1,)),
        ]

    def streams(self) -> Iterator[tuple[str, Stream]]:
        """Bytes of every array by its key."""
        for info in self.fields:
            yield _data_key(info), self._data[info.name]
        for name, ends in self._ends.items():
            yield f"{names.FIELDS_GROUP}/{name}/{names.OFFSETS}", self._held(ends)
        for name, shapes in self._shapes.items():
            yield f"{names.FIELDS_GROUP}/{name}/{names.SHAPES}", self._held(shapes)
        yield names.SAMPLE_ID, self._held(self._ids)
        yield names.CHECKSUM, self._held(self._checksums)
        yield _SOURCE_DATA, self._sources
        yield _SOURCE_OFFSETS, self._held(self._source_ends)

    def close(self) -> None:
        """Forget all."""
        for stream in (*self._data.values(), self._sources):
            stream.close()

    def _specs_of(
        self, info: FieldInfo, count: int, expected: Expected | None
    ) -> Iterator[ArraySpec]:
        key = _data_key(info)
        if info.layout == "fixed":
            yield ArraySpec(
                key=key,
                dtype=info.dtype,
                shape=(count, *info.shape),
                codec=info.codec,
                chunk_samples=info.chunk_samples,
            )
            return
        num_bytes = expected.first_bytes if expected else self._data[info.name].num_bytes
        yield ArraySpec(key=key, dtype="uint8", shape=(num_bytes,))
        group = f"{names.FIELDS_GROUP}/{info.name}"
        yield ArraySpec(key=f"{group}/{names.OFFSETS}", dtype="int64", shape=(count + 1,))
        if info.ndim is not None:
            shape = (count, info.ndim)
            yield ArraySpec(key=f"{group}/{names.SHAPES}", dtype="int64", shape=shape)

    def _held(self, parts: Sequence[NDArray[Any]]) -> Stream:
        stream = Stream(self._folder)
        if parts:
            whole = np.concatenate(parts)
            little_endian = whole.astype(whole.dtype.newbyteorder("<"), copy=False)
            stream.hold(little_endian.tobytes())
        return stream


def checksums(columns: Sequence[Sequence[Buffer]]) -> NDArray[np.uint64]:
    """XXH3 (64 bits) over the bytes of all fields of each sample, `(num_samples,) uint64`."""
    digest = xxhash.xxh3_64_intdigest
    if len(columns) == 1:
        hashes = map(digest, columns[0])
    else:
        first, *others = columns
        if max(map(len, first), default=0) < _JOINED_BYTES:
            hashes = map(digest, map(b"".join, zip(*columns, strict=True)))
        else:
            hashes = map(_checksum, first, map(b"".join, zip(*others, strict=True)))
    return np.fromiter(hashes, dtype=np.uint64, count=len(columns[0]))


def _checksum(first: Buffer, rest: bytes) -> int:
    state = xxhash.xxh3_64(first)
    state.update(rest)
    return int(state.intdigest())


def _data_key(info: FieldInfo) -> str:
    key = f"{names.FIELDS_GROUP}/{info.name}"
    return f"{key}/{names.DATA}" if info.layout == "ragged" else key


def _ends(stream: Stream, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each item of such sizes will end in an array."""
    ends: NDArray[np.int64] = stream.num_bytes + np.cumsum(sizes)
    return ends


def _sizes(info: FieldInfo, items: Sequence[Buffer]) -> NDArray[np.int64]:
    """Bytes of each item of a field."""
    if info.layout == "fixed":
        return np.full(len(items), len(items[0]) if items else 0, dtype=np.int64)
    return _lengths(items)


def _lengths(items: Sequence[Buffer]) -> NDArray[np.int64]:
    return np.fromiter(map(len, items), dtype=np.int64, count=len(items))
