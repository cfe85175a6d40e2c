"""Reads rows of compressed arrays with the libraries of hdf5plugin, without HDF5.

HDF5 allows one thread at a time; these functions run in all threads at once, without Python's
lock. Sources of the formats: the HDF5 filters 32015 (Zstandard), 32004 (LZ4) and 32001 (Blosc).
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards.format import MEND

Decompress = Callable[[int, int, int, int], bool]
"""Takes address and bytes of a chunk, address and bytes of the target; returns whether it was
filled."""

_UNFILTERED = 1  # bit of the filter mask: the chunk is not compressed
_LZ4_HEADER = struct.Struct(">QI")
_LZ4_SIZE = struct.Struct(">I")
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class ChunkTables:
    """Finds the chunks of compressed arrays, once per array; another process finds its own."""

    def __init__(self) -> None:
        self._tables: dict[tuple[Path, str], ChunkTable | None] = {}

    def __reduce__(self) -> tuple[type[ChunkTables], tuple[()]]:
        return ChunkTables, ()

    def table(self, path: Path, key: str) -> ChunkTable | None:
        """Return the chunks of a shard's array; None if only `read_rows` can read them."""
        place = (path, key)
        if place not in self._tables:
            with _opened(path, key) as array:
                self._tables[place] = ChunkTable.of(array, f"'{key}' in {path}")
        return self._tables[place]

    def forget(self, path: Path) -> None:
        """Forget a file, for example before it is removed."""
        for place in [place for place in list(self._tables) if place[0] == path]:
            self._tables.pop(place, None)


def read_rows(path: Path, key: str, wanted: NDArray[np.int64]) -> NDArray[Any]:
    """Read rows `wanted (n,) int64` of a compressed array by HDF5, `(n, *shape)`; in any order.

    Every chunk is decompressed once. A `ShardError` means that the shard cannot be read.
    """
    import hdf5plugin  # noqa: F401  registers the filters; slow to import

    with _opened(path, key) as array:
        values = np.empty((len(wanted), *array.shape[1:]), dtype=array.dtype)
        chunk_rows = array.chunks[0]
        for number, here in _by_chunk(wanted // chunk_rows):
            first = number * chunk_rows
            values[here] = array[first : first + chunk_rows][wanted[here] - first]
        return values


@contextmanager
def _opened(path: Path, key: str) -> Iterator[h5py.Dataset]:
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file[key]
    except (OSError, LookupError, RuntimeError, ValueError) as error:
        raise ShardError(f"The shard {path} cannot be read at '{key}': {error}", MEND) from error


@dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """The chunks of one array of a shard."""

    name: str
    """Array and shard, for messages."""
    places: NDArray[np.int64]
    """First byte, bytes and filter mask of each chunk, `(num_chunks, 3) int64`."""
    num_rows: int
    chunk_rows: int
    """Rows in a chunk; the last chunk is padded."""
    shape: tuple[int, ...]
    """Shape of a row."""
    dtype: np.dtype[Any]
    """Type of an element."""
    decompress: Decompress

    @classmethod
    def of(cls, array: h5py.Dataset, name: str) -> ChunkTable | None:
        """Return the chunks of an array; None if only HDF5 can read them."""
        filters = array.id.get_create_plist()
        if filters.get_nfilters() != 1 or array.chunks[1:] != array.shape[1:]:
            return None
        decompress = decompressor(filters.get_filter(0)[0])
        if decompress is None:
            return None
        chunk_rows = array.chunks[0]
        places = np.zeros((-(-array.shape[0] // chunk_rows), 3), dtype=np.int64)

        def note(info: Any) -> None:
            mask = info.filter_mask
            places[info.chunk_offset[0] // chunk_rows] = info.byte_offset, info.size, mask

        array.id.chunk_iter(note)
        return cls(
            name=name,
            places=places,
            num_rows=array.shape[0],
            chunk_rows=chunk_rows,
            shape=array.shape[1:],
            dtype=array.dtype,
            decompress=decompress,
        )

    def fill(
        self,
        content: NDArray[np.uint8],
        wanted: NDArray[np.int64],
        out: NDArray[Any],
        positions: NDArray[np.int64],
    ) -> None:
        """Decompress rows; a chunk of several rows once.

        Takes the file `content (num_bytes,) uint8` and the rows `wanted (n,) int64`, in any order,
        repeats allowed; they go to the positions `positions (n,) int64` of `out (m, *shape)`. A
        `ShardError` means that a chunk is damaged.
        """
        room = np.empty((self.chunk_rows, *self.shape), dtype=self.dtype)
        source = content.ctypes.data, len(content)
        if self.chunk_rows == 1 and out.flags.c_contiguous and out.dtype == self.dtype:
            targets = (out.ctypes.data + positions * room.nbytes).tolist()
            for number, target in zip(wanted.tolist(), targets, strict=True):
                self._decompress(source, number, target, room.nbytes)
            return
        for number, here in _by_chunk(wanted // self.chunk_rows):
            self._decompress(source, number, room.ctypes.data, room.nbytes)
            out[positions[here]] = room[wanted[here] - number * self.chunk_rows]

    def _decompress(self, source: tuple[int, int], number: int, room: int, room_bytes: int) -> None:
        address, num_bytes = source
        start, size, mask = self.places[number].tolist()
        if 0 < start <= start + size <= num_bytes:
            chunk = address + start
            if not mask & _UNFILTERED:
                if self.decompress(chunk, size, room, room_bytes):
                    return
            elif size == room_bytes:
                ctypes.memmove(room, chunk, size)
                return
        first = number * self.chunk_rows
        last = min(first + self.chunk_rows, self.num_rows) - 1
        raise ShardError(
            f"{self.name} is damaged: rows {first:,} to {last:,} cannot be decompressed", MEND
        )


def _by_chunk(chunk_of: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield `(chunk, positions of the rows in it)`."""
    order = np.argsort(chunk_of, kind="stable")
    numbers, starts = np.unique(chunk_of[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)


@cache
def decompressor(filter_id: int) -> Decompress | None:
    """Return a function for chunks of an HDF5 filter, by its number; None if only HDF5 can."""
    make = {32015: _zstd, 32004: _lz4, 32001: _blosc}.get(filter_id)
    try:
        return make() if make is not None else None
    except (OSError, AttributeError):  # a build of hdf5plugin without exported functions
        return None


def _zstd() -> Decompress:
    library = _library("zstd")
    function = library.ZSTD_decompressDCtx
    function.argtypes, function.restype = (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE), _SIZE
    tables = threading.local()  # creating them takes as long as decompressing 4 KiB

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        if not hasattr(tables, "own"):
            tables.own = _ZstdTables(library)
        done = function(tables.own.address, room, room_bytes, chunk, num_bytes)
        return bool(done == room_bytes)

    return decompress


class _ZstdTables:
    """Working memory of Zstandard, of one thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.ZSTD_createDCtx.restype = _POINTER
        library.ZSTD_freeDCtx.argtypes = (_POINTER,)
        self.address = library.ZSTD_createDCtx()
        if not self.address:
            raise MemoryError("no room for the tables of Zstandard")
        weakref.finalize(self, library.ZSTD_freeDCtx, self.address)


def _lz4() -> Decompress:
    """Return a function for LZ4: big-endian total size, block size; then sized blocks."""
    function = _library("lz4").LZ4_decompress_safe
    function.argtypes, function.restype = (_POINTER, _POINTER, _INT, _INT), _INT

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        if num_bytes < _LZ4_HEADER.size:
            return False
        total, block_bytes = _LZ4_HEADER.unpack(ctypes.string_at(chunk, _LZ4_HEADER.size))
        at, end, done = chunk + _LZ4_HEADER.size, chunk + num_bytes, 0
        while done < room_bytes and total == room_bytes and block_bytes:
            size = min(block_bytes, room_bytes - done)
            if at + _LZ4_SIZE.size > end:
                return False
            (packed,) = _LZ4_SIZE.unpack(ctypes.string_at(at, _LZ4_SIZE.size))
            at += _LZ4_SIZE.size
            if at + packed > end:
                return False
            if packed == size:  # stored uncompressed, because compression did not shrink it
                ctypes.memmove(room + done, at, size)
            elif function(at, room + done, packed, size) != size:
                return False
            at, done = at + packed, done + size
        return bool(done == room_bytes)

    return decompress


def _blosc() -> Decompress:
    library = _library("blosc")
    validate, function = library.blosc_cbuffer_validate, library.blosc_decompress_ctx
    validate.argtypes, validate.restype = (_POINTER, _SIZE, ctypes.POINTER(_SIZE)), _INT
    function.argtypes, function.restype = (_POINTER, _POINTER, _SIZE, _INT), _INT

    def decompress(chunk: int, num_bytes: int, room: int, room_bytes: int) -> bool:
        total = _SIZE()
        if validate(chunk, num_bytes, ctypes.byref(total)) < 0 or total.value != room_bytes:
            return False
        return bool(function(chunk, room, room_bytes, 1) == room_bytes)

    return decompress


def _library(name: str) -> ctypes.CDLL:
    import hdf5plugin

    found = sorted(Path(hdf5plugin.PLUGIN_PATH).glob(f"libh5{name}.*"))
    return ctypes.CDLL(str(found[0])) if found else ctypes.CDLL(f"libh5{name}.so")
