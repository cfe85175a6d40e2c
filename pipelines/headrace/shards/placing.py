"""Makes the HDF5 skeleton of a shard: where every array lies, without the arrays' bytes.

HDF5 writes its own structures only; what it reserves for uncompressed arrays is written by others
at the offsets given here. Arrays with a codec are fed to HDF5, which compresses them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.shards import format as names
from headrace.storage.manifest import Codec


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """One array of a shard."""

    key: str
    """HDF5 path, as in `fields/image/data`."""
    dtype: str
    """NumPy dtype of an element."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    codec: Codec = "none"
    """Compression."""
    chunk_samples: int = 0
    """Samples in a chunk of a compressed array."""


Feed = Callable[[int], Iterator[NDArray[Any]]]
"""Gives the rows of a compressed array, so many at a time."""


_FED_BYTES = 2**20  # bytes that HDF5 is given at once to compress


class _Positioned:
    """What the files that HDF5 is given have in common."""

    _position = 0

    def tell(self) -> int:
        """The place."""
        return self._position

    def read(self, size: int) -> bytes:
        """Read back, as `readinto`."""
        content = bytearray(size)
        self.readinto(content)
        return bytes(content)

    def readinto(self, buffer: Any) -> int:
        """Read back from the place on."""
        raise NotImplementedError


class SparseImage(_Positioned):
    """A file in memory of which only what HDF5 writes itself takes room."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: dict[int, bytes] = {}

    def pieces(self) -> list[tuple[int, bytes]]:
        """What was written, as (offset, bytes), by offset; later writes lie over earlier ones."""
        return sorted(self._pieces.items())

    def head(self, end: int) -> bytes:
        """The first `end` bytes; zeros where nothing was written."""
        content = bytearray(end)
        for offset, piece in self.pieces():
            part = piece[: max(0, end - offset)]
            content[offset : offset + len(part)] = part
        return bytes(content)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place."""
        self._position = offset + (self.size if whence == os.SEEK_END else 0)
        return self._position

    def write(self, content: Any) -> int:
        """Keep bytes; they replace those that were written at the same place before."""
        piece = bytes(content)
        start, end = self._position, self._position + len(piece)
        for offset, other in list(self._pieces.items()):
            if offset < end and start < offset + len(other):  # join what overlaps
                first, last = min(start, offset), max(end, offset + len(other))
                joined = bytearray(last - first)
                joined[offset - first : offset - first + len(other)] = other
                joined[start - first : start - first + len(piece)] = piece
                del self._pieces[offset]
                start, end, piece = first, last, bytes(joined)
        self._pieces[start] = piece
        self.size = max(self.size, end)
        self._position += len(content)
        return len(content)

    def readinto(self, buffer: Any) -> int:
        """Read back; zeros where nothing was written."""
        view = memoryview(buffer).cast("B")
        view[:] = self.head(self._position + len(view))[self._position :]
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        self.size = self._position if size is None else size
        return self.size

    def flush(self) -> None:
        """Nothing waits."""


class GuardedFile(_Positioned):
    """A file that HDF5 writes to; a full disk is remembered, for HDF5 does not survive it.

    Args:
        descriptor: An open, empty file.
    """

    def __init__(self, descriptor: int) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place."""
        end = os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0
        self._position = offset + end
        return self._position

    def write(self, content: Any) -> int:
        """Write all bytes, unless writing failed before."""
        view = memoryview(content).cast("B")
        done = 0
        while self.error is None and done < len(view):
            try:
                done += os.pwrite(self._descriptor, view[done:], self._position + done)
            except OSError as error:
                self.error = error
        self._position += len(view)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        """Read back."""
        view = memoryview(buffer).cast("B")
        content = os.pread(self._descriptor, len(view), self._position)
        view[: len(content)] = content
        view[len(content) :] = bytes(len(view) - len(content))
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        length = self._position if size is None else size
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            self.error = self.error or error
        return length

    def flush(self) -> None:
        """Nothing waits."""


def place_arrays(
    target: SparseImage | GuardedFile,
    split: str,
    arrays: Sequence[ArraySpec],
    feeds: Mapping[str, Feed] | None = None,
) -> dict[str, int]:
    """Write the skeleton of a shard.

    Args:
        target: Where to.
        split: Split of all samples.
        arrays: Arrays in the order in which they lie in the file.
        feeds: Rows of the arrays with a codec.

    Returns:
        First byte in the file of every array that is neither empty nor compressed.

    Raises:
        OSError: The target's storage is full, or failed.
    """
    places: dict[str, int] = {}
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
            feed = (feeds or {}).get(spec.key)
            if feed is not None and spec.shape[0]:
                _compress(file, spec, feed)
            else:
                offset = _reserve(file, spec)
                if offset is not None:
                    places[spec.key] = offset
    error = getattr(target, "error", None)
    if error is not None:
        raise error
    return places


def codec_options(codec: Codec) -> dict[str, Any]:
    """Keywords of `h5py.Group.create_dataset` for a codec."""
    import hdf5plugin

    if codec == "lz4":
        return dict(hdf5plugin.LZ4())
    if codec == "zstd":
        return dict(hdf5plugin.Zstd(clevel=3))
    return dict(hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE))


def _reserve(file: h5py.File, spec: ArraySpec) -> int | None:
    """Room for an array that others write; None for an empty one."""
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
    """How the arrays that others write are made, and their links."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.CONTIGUOUS)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plist.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return plist, links


def _compress(file: h5py.File, spec: ArraySpec, feed: Feed) -> None:
    chunk = max(1, min(spec.chunk_samples, spec.shape[0]))
    dataset = file.create_dataset(
        spec.key,
        shape=spec.shape,
        dtype=np.dtype(spec.dtype).newbyteorder("<"),
        chunks=(chunk, *spec.shape[1:]),
        track_times=False,
        **codec_options(spec.codec),
    )
    chunk_bytes = chunk * math.prod(spec.shape[1:]) * dataset.dtype.itemsize
    start = 0
    for rows in feed(chunk * max(1, _FED_BYTES // max(1, chunk_bytes))):
        dataset[start : start + len(rows)] = rows
        start += len(rows)
