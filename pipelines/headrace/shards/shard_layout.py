"""Places the arrays of a shard in its file; HDF5 writes only its own structures.

Other code writes uncompressed arrays at the offsets that are reserved here. Arrays with a codec are
passed to HDF5, which compresses them.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import h5py
import numpy as np

from headrace.errors import ShardError
from headrace.files.manifest import Codec
from headrace.shards import format as names

Buffer: TypeAlias = "bytes | memoryview"
"""Bytes of one or more samples; a view is one-dimensional and of bytes."""

_FED_BYTES = 2**20  # bytes that HDF5 gets at once to compress


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array of a shard."""

    key: str
    """HDF5 path, such as `fields/image/data`."""
    dtype: str
    """NumPy dtype of an element."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    codec: Codec = "none"
    chunk_samples: int = 0
    """Samples in a chunk of a compressed array."""

    @property
    def num_bytes(self) -> int:
        """Uncompressed bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _GuardedFile(io.RawIOBase):
    """A file that HDF5 writes to; keeps the error of a full disk, which would crash HDF5."""

    def __init__(self, descriptor: int) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._position = 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = (0, self._position, os.fstat(self._descriptor).st_size)
        self._position = starts[whence] + offset
        return self._position

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        try:
            if self.error is None:
                write_all(self._descriptor, view, self._position)
        except OSError as error:
            self.error = error
        self._position += len(view)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        content = os.pread(self._descriptor, len(view), self._position)
        view[:] = content.ljust(len(view), b"\0")
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        length = self._position if size is None else size
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            self.error = self.error or error
        return length


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """HDF5's part of a shard without codecs: all except the bytes of the arrays."""

    arrays: tuple[ArraySpec, ...]
    """Arrays in their order in the file."""
    places: dict[str, int]
    """First byte in the file of every non-empty array."""
    num_bytes: int
    pieces: tuple[tuple[int, bytes], ...]
    """Content before, between and behind the arrays, as (offset, bytes)."""

    @property
    def head(self) -> bytes:
        """Content before all arrays."""
        return self.pieces[0][1]


def make_skeleton(split: str, arrays: Sequence[ArraySpec]) -> Skeleton:
    """Let HDF5 place arrays in a sparse file in memory, and return HDF5's part."""
    with open(os.memfd_create("headrace-shard"), "rb", buffering=0) as file:
        places = place_arrays(file.fileno(), split, arrays, {})
        num_bytes = os.fstat(file.fileno()).st_size
        sizes = {spec.key: spec.num_bytes for spec in arrays}
        taken = sorted((start, start + sizes[key]) for key, start in places.items())
        starts, ends = [0, *(end for _, end in taken)], [*(start for start, _ in taken), num_bytes]
        pieces = tuple(
            (start, read_all(file.fileno(), end - start, start))
            for start, end in zip(starts, ends, strict=True)
        )
    return Skeleton(arrays=tuple(arrays), places=places, num_bytes=num_bytes, pieces=pieces)


def place_arrays(
    descriptor: int,
    split: str,
    arrays: Sequence[ArraySpec],
    feeds: Mapping[str, Callable[[int], Iterator[bytes]]],
) -> dict[str, int]:
    """Write the skeleton of a shard to an open, empty file, arrays in the given order.

    Returns the first byte of every array that is neither empty nor compressed. `feeds` yield the
    bytes of the arrays with a codec, in pieces of that size.
    """
    places: dict[str, int] = {}
    target = _GuardedFile(descriptor)
    with h5py.File(
        target,
        "w",
        libver=("earliest", "v110"),
        alignment_threshold=1,
        alignment_interval=names.ALIGNMENT_BYTES,
    ) as file:
        file.attrs[names.FORMAT_ATTRIBUTE] = np.int64(names.SHARD_FORMAT)
        file.attrs[names.SPLIT_ATTRIBUTE] = split
        for spec in arrays:
            feed = feeds.get(spec.key)
            if feed is not None and spec.shape[0]:
                _compress(file, spec, feed)
            else:
                offset = _reserve(file, spec)
                if offset is not None:
                    places[spec.key] = offset
    if target.error is not None:
        raise target.error
    return places


def _codec_options(codec: Codec) -> dict[str, Any]:
    import hdf5plugin

    if codec == "lz4":
        return dict(hdf5plugin.LZ4())
    if codec == "zstd":
        return dict(hdf5plugin.Zstd(clevel=3))
    return dict(hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))


def _reserve(file: h5py.File, spec: ArraySpec) -> int | None:
    """Reserve room for an array and return its offset; None for an empty one."""
    plist, links = _properties()
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    dataset = h5py.h5d.create(
        file.id,
        spec.key.encode(),
        h5py.h5t.py_create(dtype, logical=True),
        h5py.h5s.create_simple(spec.shape),
        plist,
        links,
    )
    offset = dataset.get_offset()
    return None if offset is None else int(offset)


@cache
def _properties() -> tuple[Any, Any]:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plist.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return plist, links


def _compress(file: h5py.File, spec: ArraySpec, feed: Callable[[int], Iterator[bytes]]) -> None:
    chunk = max(1, min(spec.chunk_samples, spec.shape[0]))
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    dataset = file.create_dataset(
        spec.key,
        shape=spec.shape,
        dtype=dtype,
        chunks=(chunk, *spec.shape[1:]),
        track_times=False,
        **_codec_options(spec.codec),
    )
    chunk_bytes = max(1, spec.num_bytes // spec.shape[0] * chunk)
    start = 0
    for block in feed(max(1, _FED_BYTES // chunk_bytes) * chunk_bytes):
        rows = np.frombuffer(block, dtype=dtype).reshape(-1, *spec.shape[1:])
        dataset[start : start + len(rows)] = rows
        start += len(rows)


def write_all(descriptor: int, content: Buffer, offset: int) -> None:
    """Write all of `content` at `offset`."""
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], offset + done)


def read_all(descriptor: int, num_bytes: int, offset: int) -> bytes:
    """Return exactly so many bytes; raise `ShardError` if the file ends before."""
    content = os.pread(descriptor, num_bytes, offset)
    while len(content) < num_bytes:
        more = os.pread(descriptor, num_bytes - len(content), offset + len(content))
        if not more:
            missing = num_bytes - len(content)
            raise ShardError(f"A file that is being packed ends {missing:,} bytes too early")
        content += more
    return content
