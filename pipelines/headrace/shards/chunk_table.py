"""Where the chunks of a compressed array lie, and rows out of them, by any number of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards.codecs import Decompress, decompressor
from headrace.shards.format import MEND

_UNFILTERED = 1  # bit of the filter mask: the chunk is kept as it was


@dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """The chunks of one array of a shard."""

    name: str
    """Shard and array, for messages."""
    places: NDArray[np.int64]
    """First byte, bytes and filter mask of each chunk, `(num_chunks, 3) int64`."""
    num_rows: int
    """Rows of the array."""
    chunk_rows: int
    """Rows in a chunk; the last one is filled up."""
    shape: tuple[int, ...]
    """Shape of a row."""
    dtype: np.dtype[Any]
    """Type of an element."""
    decompress: Decompress
    """Decompresses a chunk."""

    @classmethod
    def of(cls, array: h5py.Dataset, name: str) -> ChunkTable | None:
        """The chunks of an array; None when only HDF5 can read them."""
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

        Args:
            content: The file, `(num_bytes,) uint8`.
            wanted: Rows, `(n,) int64`, in any order, repeats allowed.
            out: Where to, `(m, *shape)`.
            positions: Places in `out` of the rows, `(n,) int64`.

        Raises:
            ShardError: A chunk is damaged.
        """
        room = np.empty((self.chunk_rows, *self.shape), dtype=self.dtype)
        chunks = _Chunks(self, content.ctypes.data, len(content), room.nbytes)
        if self.chunk_rows == 1 and out.flags.c_contiguous and out.dtype == self.dtype:
            targets = (out.ctypes.data + positions * room.nbytes).tolist()
            for number, target in zip(wanted.tolist(), targets, strict=True):
                chunks.decompress(number, target)
            return
        for number, here in _by_chunk(wanted // self.chunk_rows):
            chunks.decompress(number, room.ctypes.data)
            out[positions[here]] = room[wanted[here] - number * self.chunk_rows]


@dataclass(frozen=True)
class _Chunks:
    """The chunks of a table in memory."""

    table: ChunkTable
    address: int
    num_bytes: int
    room_bytes: int

    def decompress(self, number: int, room: int) -> None:
        start, size, mask = self.table.places[number].tolist()
        if 0 < start <= start + size <= self.num_bytes:
            chunk, room_bytes = self.address + start, self.room_bytes
            if not mask & _UNFILTERED:
                if self.table.decompress(chunk, size, room, room_bytes):
                    return
            elif size == room_bytes:
                ctypes.memmove(room, chunk, size)
                return
        first = number * self.table.chunk_rows
        last = min(first + self.table.chunk_rows, self.table.num_rows) - 1
        raise ShardError(
            f"{self.table.name} is damaged: rows {first:,} to {last:,} cannot be decompressed",
            MEND,
        )


def _by_chunk(chunk_of: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield `(chunk, places of the rows that lie in it)`."""
    order = np.argsort(chunk_of, kind="stable")
    numbers, starts = np.unique(chunk_of[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
