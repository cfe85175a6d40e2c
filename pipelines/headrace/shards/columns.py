"""Content of a shard while it is built: the bytes of its arrays, and their sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.files.manifest import FieldInfo
from headrace.shards import format as names
from headrace.shards.shard_layout import ArraySpec, Buffer, write_all

MEMORY_BYTES = 32 * 2**20
"""Bytes of an array that are kept in memory; more than two arrays share twice that equally. Beyond,
all go to an unnamed file."""
PIECE_BYTES = 2**20
"""Bytes per write, few enough to be still in the processor's cache."""
_JOINED_BYTES = 16 * 2**10  # smaller buffers are joined first
_MAX_BUFFERS = 512  # one call can write at most 1024
_SOURCE_DATA = f"{names.SOURCE}/{names.DATA}"


@dataclass(frozen=True, kw_only=True)
class ExpectedSizes:
    """Sizes known before the samples are read; if they are right, the shard is written at once."""

    num_samples: int
    source_bytes: int
    """Bytes of all source paths in UTF-8."""
    first_bytes: int = 0
    """Bytes of all samples of the first field, if it is ragged."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some samples."""

    ids: NDArray[np.int64]
    """Their ids, `(num_samples,) int64`."""
    sources: Sequence[bytes]
    """Their source paths in UTF-8."""
    columns: Sequence[Sequence[Buffer]]
    """By field, the bytes of each sample; empty if `joined` has those of all fields."""
    shapes: Mapping[str, Sequence[tuple[int, ...]]]
    """Shapes of the samples, of ragged fields of arrays."""
    joined: Sequence[Buffer | None] = ()
    """By field, the bytes of all samples back to back, if they are contiguous; they may change
    after the block was added."""

    def checksums(self) -> NDArray[np.uint64]:
        """Return XXH3 (64 bits) over the bytes of all fields of each sample, `(num_samples,)`."""
        if all(len(column) for column in self.columns):
            return names.sample_checksums(self.columns)
        num_rows = len(self.ids)
        wholes = (np.frombuffer(joined or b"", np.uint8) for joined in self.joined)
        fields = [whole.reshape(num_rows, len(whole) // num_rows) for whole in wholes]
        return names.row_checksums(np.ascontiguousarray(np.concatenate(fields, axis=1)))


class ShardArrays:
    """Arrays of one shard; files for data beyond the memory limit are made in `folder`.

    Attributes:
        direct: Takes the bytes of the first field, if their position is known beforehand.
    """

    def __init__(self, folder: Path, fields: Sequence[FieldInfo]) -> None:
        self.fields = tuple(fields)
        self.num_samples = 0
        self.direct: DirectStream | None = None
        keys = [*map(data_key, fields), _SOURCE_DATA]
        room = 2 * MEMORY_BYTES // max(len(keys), 2)
        self._spools = {key: Spool(folder, room) for key in keys}
        self._numbers: dict[str, list[NDArray[Any]]] = {names.SAMPLE_ID: [], names.CHECKSUM: []}
        ragged = [_group(info.name) for info in fields if info.layout == "ragged"]
        for group in (*ragged, names.SOURCE):
            self._numbers[f"{group}/{names.OFFSETS}"] = [np.zeros(1, dtype=np.int64)]
        for info in fields:
            if info.ndim is not None:
                self._numbers[f"{_group(info.name)}/{names.SHAPES}"] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the fields."""
        return sum(self.data(info).num_bytes for info in self.fields)

    def data(self, info: FieldInfo) -> Spool | DirectStream:
        """Return the bytes of a field."""
        if self.direct is not None and info is self.fields[0]:
            return self.direct
        return self._spools[data_key(info)]

    def feed(self, info: FieldInfo) -> Callable[[int], Iterator[bytes]]:
        """Return a function that yields the bytes of a compressed field, in pieces of that size."""
        return self._spools[data_key(info)].blocks

    def add(self, block: Block) -> None:
        """Add samples."""
        self._numbers[names.SAMPLE_ID].append(block.ids)
        self._numbers[names.CHECKSUM].append(block.checksums())
        joined = block.joined or (None,) * len(block.columns)
        for info, column, whole in zip(self.fields, block.columns, joined, strict=True):
            stream = self.data(info)
            if info.layout == "ragged":
                self._add_ends(_group(info.name), stream.num_bytes, column)
            if whole is not None:
                stream.extend([whole])
                stream.flush()
            else:
                stream.extend(column)
        for name, shapes in block.shapes.items():
            rows = np.array(shapes, dtype=np.int64).reshape(len(shapes), -1)
            self._numbers[f"{_group(name)}/{names.SHAPES}"].append(rows)
        sources = self._spools[_SOURCE_DATA]
        self._add_ends(names.SOURCE, sources.num_bytes, block.sources)
        sources.extend(block.sources)
        self.num_samples += len(block.ids)

    def specs(self, expected: ExpectedSizes | None = None) -> tuple[ArraySpec, ...]:
        """Return the arrays of the file: of these sizes, or of the samples that were added."""
        count = expected.num_samples if expected else self.num_samples
        found: list[ArraySpec] = []
        for info in self.fields:
            num_bytes = expected.first_bytes if expected else self.data(info).num_bytes
            found += _specs(info, count, num_bytes)
        source_bytes = expected.source_bytes if expected else self._spools[_SOURCE_DATA].num_bytes
        return (
            *found,
            ArraySpec(key=names.SAMPLE_ID, dtype="int64", shape=(count,)),
            ArraySpec(key=names.CHECKSUM, dtype="uint64", shape=(count,)),
            ArraySpec(key=_SOURCE_DATA, dtype="uint8", shape=(source_bytes,)),
            ArraySpec(key=f"{names.SOURCE}/{names.OFFSETS}", dtype="int64", shape=(count + 1,)),
        )

    def write(self, descriptor: int, places: Mapping[str, int]) -> None:
        """Write arrays to their positions in a file, except the one that is already there."""
        if self.direct is not None:
            self.direct.flush()
        for key, offset in places.items():
            spool = self._spools.get(key)
            for block in spool.blocks(PIECE_BYTES) if spool else [_bytes(self._numbers[key])]:
                write_all(descriptor, block, offset)
                offset += len(block)

    def close(self) -> None:
        """Drop all data."""
        for spool in self._spools.values():
            spool.close()

    def _add_ends(self, group: str, num_bytes: int, items: Sequence[Buffer]) -> None:
        sizes = np.fromiter(map(len, items), dtype=np.int64, count=len(items))
        self._numbers[f"{group}/{names.OFFSETS}"].append(num_bytes + np.cumsum(sizes))


class Spool:
    """Keeps the bytes of an array until their position is known."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.num_bytes = 0
        self._file = SpooledTemporaryFile(memory_bytes, dir=str(folder))  # noqa: SIM115  see `close`

    def extend(self, items: Sequence[Buffer]) -> None:
        """Add bytes; the buffers may change afterwards."""
        self._file.writelines(items)
        self._file.flush()
        self.num_bytes += sum(map(len, items))

    def flush(self) -> None:
        """Do nothing: no data waits."""

    def blocks(self, block_bytes: int) -> Iterator[bytes]:
        """Yield all bytes, in pieces of that size."""
        self._file.seek(0)
        while block := self._file.read(block_bytes):
            yield block

    def close(self) -> None:
        """Drop the bytes."""
        with suppress(OSError):  # `extend` has already raised for a full disk
            self._file.close()


class DirectStream:
    """Writes the bytes of an array to their position in an open, empty file, in small pieces.

    `written` is called with all bytes in order.
    """

    def __init__(self, descriptor: int, offset: int, written: Callable[[Buffer], object]) -> None:
        self.num_bytes = 0
        self.offset = offset
        self._descriptor = descriptor
        self._written = written
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0

    def extend(self, items: Sequence[Buffer]) -> None:
        """Add bytes; the buffers must not change before `flush`."""
        if sum(map(len, items)) < _JOINED_BYTES * len(items):
            items = [b"".join(items)]
        for item in items:
            self._waiting.append(item)
            self.num_bytes += len(item)
            self._waiting_bytes += len(item)
            if self._waiting_bytes >= PIECE_BYTES or len(self._waiting) >= _MAX_BUFFERS:
                self.flush()

    def flush(self) -> None:
        """Write pending bytes."""
        if not self._waiting:
            return
        start = self.offset + self.num_bytes - self._waiting_bytes
        done = os.pwritev(self._descriptor, self._waiting, start)
        if done < self._waiting_bytes:  # partial write, for example on a nearly full disk
            write_all(self._descriptor, b"".join(self._waiting)[done:], start + done)
        for item in self._waiting:
            self._written(item)
        self._waiting.clear()
        self._waiting_bytes = 0


def _specs(info: FieldInfo, count: int, num_bytes: int) -> Iterator[ArraySpec]:
    if info.layout == "fixed":
        yield ArraySpec(
            key=data_key(info),
            dtype=info.dtype,
            shape=(count, *info.shape),
            codec=info.codec,
            chunk_samples=info.chunk_samples,
        )
        return
    group = _group(info.name)
    yield ArraySpec(key=data_key(info), dtype="uint8", shape=(num_bytes,))
    yield ArraySpec(key=f"{group}/{names.OFFSETS}", dtype="int64", shape=(count + 1,))
    if info.ndim is not None:
        shape = (count, info.ndim)
        yield ArraySpec(key=f"{group}/{names.SHAPES}", dtype="int64", shape=shape)


def data_key(info: FieldInfo) -> str:
    """Return the HDF5 path of the bytes of a field."""
    group = _group(info.name)
    return f"{group}/{names.DATA}" if info.layout == "ragged" else group


def _group(field: str) -> str:
    return f"{names.FIELDS_GROUP}/{field}"


def _bytes(parts: Sequence[NDArray[Any]]) -> bytes:
    whole = np.concatenate(parts)
    return whole.astype(whole.dtype.newbyteorder("<"), copy=False).tobytes()
