"""Samples of fixed fields straight from the shards into batches: one native call a field.

Shards are mapped into one address space, so a batch is an `index_select` by addresses. It goes
into memory that is used again when nobody refers to the batch that had it before: fresh memory
would have to be cleared by the kernel first, which costs as much as the copy.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.shards.dataset import ShardedDataset
from headrace.storage.manifest import FieldInfo

_MIN_REUSED_BYTES = 2**16  # below, the allocator of the C library reuses memory by itself
_MAX_FREE = 8


class Buffers:
    """Lends memory for batches and takes it back when the last tensor on it is gone.

    Whoever keeps a batch, or a view of it, keeps its memory: it is never written to again. With
    CUDA in use, memory is page-locked and comes from PyTorch, which reuses it after all copies to
    the device that were begun.
    """

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=_MAX_FREE)
        self._lent: dict[int, weakref.ref[NDArray[np.uint8]]] = {}

    def __reduce__(self) -> tuple[type[Buffers], tuple[()]]:
        return Buffers, ()

    def lend(self, num_bytes: int) -> Tensor:
        """Memory with any content, `(num_bytes,) uint8`."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        if num_bytes < _MIN_REUSED_BYTES:
            return torch.empty(num_bytes, dtype=torch.uint8)
        memory = self._taken(num_bytes)
        lent = memory[:]  # an object of its own, which tensors keep alive
        key = id(memory)
        self._lent[key] = weakref.ref(lent, lambda _: self._take_back(key, memory))
        return torch.from_numpy(lent)

    def _taken(self, num_bytes: int) -> NDArray[np.uint8]:
        for _ in range(len(self._free)):
            try:
                memory = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(memory) == num_bytes:
                return memory
            self._free.appendleft(memory)
        return np.empty(num_bytes, dtype=np.uint8)

    def _take_back(self, key: int, memory: NDArray[np.uint8]) -> None:
        self._lent.pop(key, None)
        self._free.append(memory)


class Gatherer:
    """Gathers samples of fixed fields of a split.

    Args:
        dataset: The split.
    """

    def __init__(self, dataset: ShardedDataset) -> None:
        self.dataset = dataset
        self._buffers = Buffers()
        self._views: dict[int, Tensor] = {}
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_views": {}}

    def gather(self, fields: Sequence[FieldInfo], indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Samples in the order asked for; call it inside the dataset's `holding`.

        Args:
            fields: Fields of fixed shape.
            indices: Places in the split, `(n,) int64`, in any order, repeats allowed.

        Returns:
            By field `(n, *shape)` of its dtype; nobody else will write to it.

        Raises:
            ShardError: A shard is damaged.
            IndexError: An index is outside the split.
        """
        shard_of = self.dataset.shard_of(indices)
        return {info.name: self._gather(info, indices, shard_of) for info in fields}

    def _gather(
        self, info: FieldInfo, indices: NDArray[np.int64], shard_of: NDArray[np.int64]
    ) -> Tensor:
        row_bytes, dtype = self._kind(info)
        out = self._buffers.lend(len(indices) * row_bytes)
        values = out.view(dtype).view(len(indices), *info.shape)
        if info.codec != "none":
            self.dataset.gather(info.name, indices, values.numpy())
        elif out.numel():
            table = self.dataset.table(info.name, shard_of) if info.shape == () else None
            if table is not None:
                np.take(table, indices, out=values.numpy(), mode="clip")
            else:
                starts = torch.from_numpy(self.dataset.rows(info.name, indices, shard_of))
                rows = self._rows(row_bytes)
                torch.index_select(rows, 0, starts, out=out.view(len(indices), row_bytes))
        return values

    def _kind(self, info: FieldInfo) -> tuple[int, torch.dtype]:
        """Bytes of a sample, and its dtype."""
        if info.name not in self._kinds:
            dtype = torch.from_numpy(np.empty(0, dtype=info.dtype)).dtype
            self._kinds[info.name] = math.prod(info.shape) * dtype.itemsize, dtype
        return self._kinds[info.name]

    def _rows(self, row_bytes: int) -> Tensor:
        """Row `i` begins at byte `i` of the dataset's memory, `(n, row_bytes) uint8`."""
        if row_bytes not in self._views:
            memory = torch.from_numpy(self.dataset.memory)
            size = (len(memory) - row_bytes + 1, row_bytes)
            self._views[row_bytes] = torch.as_strided(memory, size, (1, 1))
        return self._views[row_bytes]
