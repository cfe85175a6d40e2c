"""Gathers samples of fixed fields from the shards into batches: one native call per field.

Shards are mapped into one address space, so a batch is an `index_select` by addresses. Addresses
are found for many batches at once: for a batch of small samples that takes as long as the copy.
Large samples are copied in pieces: PyTorch distributes whole rows over its threads, but copies the
inside of rows of 32,768 elements and more sequentially, which takes up to twice as long. Samples go
into the memory of batches that are no longer referenced: the kernel must clear fresh memory first,
which takes as long as the copy.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.files.manifest import FieldInfo
from headrace.shards.dataset import ShardedDataset

_LARGE_BYTES = 32_768  # PyTorch's grain: least number of elements per thread
_MIN_PIECE_BYTES = 8192  # smaller pieces have a noticeable overhead
_MIN_REUSED_BYTES = 2**16  # below, the allocator of the C library reuses memory by itself
_MAX_FREE = 8  # of one size
_MAX_SIZES = 64


Take = Callable[[int, int], Tensor]
"""Returns samples `start` to `stop` of those whose addresses were looked up, `(n, *shape)`."""

Located = Mapping[str, Take]
"""By field, what takes its samples."""


class Gatherer:
    """Gathers samples of fixed fields of a split.

    `held` are fields that a device holds, `(num_samples, *shape)`, also ragged ones, decoded;
    `buffers` lend memory for batches.
    """

    def __init__(self, dataset: ShardedDataset) -> None:
        self.dataset = dataset
        self.held: dict[str, Tensor] = {}
        self.buffers = Buffers()
        self._views: dict[int, Tensor] = {}
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_views": {}, "held": {}}

    def gather(self, fields: Sequence[FieldInfo], indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return samples in the order of `indices`; call it inside the dataset's `holding`.

        Takes fields of fixed shape and positions in the split, `(n,) int64`, in any order, repeats
        allowed. Returns by field `(n, *shape)` of its dtype, which is never written to again.
        """
        return self.take(self.find(fields, indices), 0, len(indices))

    def take(self, found: Located, start: int, stop: int) -> dict[str, Tensor]:
        """Return samples `start` to `stop` of the found ones, as `gather` does."""
        return {name: take(start, stop) for name, take in found.items()}

    def find(self, fields: Sequence[FieldInfo], indices: NDArray[np.int64]) -> Located:
        """Look up the addresses of samples; valid until a shard moves. Arguments as `gather`.

        Single numbers are read at once: one tensor per field, which batches share.
        """
        shard_of = self.dataset.shard_of(indices)
        return {info.name: self._find(info, indices, shard_of) for info in fields}

    def _find(
        self, info: FieldInfo, indices: NDArray[np.int64], shard_of: NDArray[np.int64]
    ) -> Take:
        if (held := self.held.get(info.name)) is not None:
            places = self.buffers.lend(indices.nbytes).view(torch.int64)
            places.numpy()[:] = indices
            places = places.to(held.device, non_blocking=True)
            return lambda start, stop: held.index_select(0, places[start:stop])
        row_bytes, dtype = self._kind(info)
        if info.codec != "none":
            return partial(self._decompressed, info, indices)
        if not len(indices) * row_bytes:
            empty = torch.empty((len(indices), *info.shape), dtype=dtype)
            return lambda start, stop: empty[start:stop]
        table = self.dataset.table(info.name, shard_of) if info.shape == () else None
        if table is not None:
            numbers = self.buffers.lend(len(indices) * row_bytes).view(dtype)
            np.take(table, indices, out=numbers.numpy(), mode="clip")
            return lambda start, stop: numbers[start:stop]
        starts = self.dataset.rows(info.name, indices, shard_of)
        piece_bytes = _piece_bytes(row_bytes)
        if piece_bytes < row_bytes:
            starts = (starts[:, None] + np.arange(0, row_bytes, piece_bytes)).reshape(-1)
        return partial(self._copied, info, torch.from_numpy(starts), piece_bytes)

    def _copied(
        self, info: FieldInfo, starts: Tensor, piece_bytes: int, start: int, stop: int
    ) -> Tensor:
        """Copy samples from the first bytes of their pieces, `starts (n * pieces,) int64`."""
        row_bytes, dtype = self._kind(info)
        num_pieces = row_bytes // piece_bytes
        first, last = start * num_pieces, stop * num_pieces
        out = self.buffers.lend((last - first) * piece_bytes).view(last - first, piece_bytes)
        torch.index_select(self._rows(piece_bytes), 0, starts[first:last], out=out)
        return out.view(-1).view(dtype).view(stop - start, *info.shape)

    def _decompressed(
        self, info: FieldInfo, indices: NDArray[np.int64], start: int, stop: int
    ) -> Tensor:
        row_bytes, dtype = self._kind(info)
        out = self.buffers.lend((stop - start) * row_bytes)
        values = out.view(dtype).view(stop - start, *info.shape)
        self.dataset.gather(info.name, indices[start:stop], values.numpy())
        return values

    def _kind(self, info: FieldInfo) -> tuple[int, torch.dtype]:
        if info.name not in self._kinds:
            dtype = torch.from_numpy(np.empty(0, dtype=info.dtype)).dtype
            self._kinds[info.name] = math.prod(info.shape) * dtype.itemsize, dtype
        return self._kinds[info.name]

    def _rows(self, row_bytes: int) -> Tensor:
        """Return rows that begin at each byte of the dataset's memory, `(n, row_bytes) uint8`."""
        if row_bytes not in self._views:
            memory = torch.from_numpy(self.dataset.memory)
            size = (len(memory) - row_bytes + 1, row_bytes)
            self._views[row_bytes] = torch.as_strided(memory, size, (1, 1))
        return self._views[row_bytes]


class Buffers:
    """Lends memory for batches and takes it back when the last tensor on it is gone.

    The memory of a batch is not written to as long as the batch, or a view of it, exists. With CUDA
    in use, memory is page-locked and comes from PyTorch, which reuses it after all started copies
    to the device. Free memory is kept while there are few sizes: of each size at most what was lent
    at once.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
        self._lent: dict[int, weakref.ref[NDArray[np.uint8]]] = {}

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def lend(self, num_bytes: int) -> Tensor:
        """Return memory with any content, `(num_bytes,) uint8`."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        if num_bytes < _MIN_REUSED_BYTES:
            return torch.empty(num_bytes, dtype=torch.uint8)
        try:
            memory = self._free[num_bytes].pop()  # the last used is still in the caches
        except LookupError:  # none was lent so far, or all are in use
            memory = np.empty(num_bytes, dtype=np.uint8)
        lent = memory[:]  # a new object, which tensors keep alive
        key = id(memory)
        self._lent[key] = weakref.ref(lent, lambda _: self._take_back(key, memory))
        return torch.from_numpy(lent)

    def _take_back(self, key: int, memory: NDArray[np.uint8]) -> None:
        self._lent.pop(key, None)
        if len(self._free) >= _MAX_SIZES and len(memory) not in self._free:
            self._free.clear()  # sizes rarely repeat, as with images of any shape
        self._free.setdefault(len(memory), deque(maxlen=_MAX_FREE)).append(memory)


@lru_cache
def _piece_bytes(row_bytes: int) -> int:
    """Return the largest equal pieces of a large row that are small; the row, if there are none."""
    if row_bytes < _LARGE_BYTES:
        return row_bytes
    sizes = range(_LARGE_BYTES - 1, _MIN_PIECE_BYTES - 1, -1)
    return next((size for size in sizes if row_bytes % size == 0), row_bytes)
