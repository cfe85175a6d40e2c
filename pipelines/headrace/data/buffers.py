"""Memory for batches that is used again: fresh memory must be cleared by the kernel first."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MIN_REUSED_BYTES = 2**16  # below, the allocator of the C library reuses memory by itself
_MAX_FREE = 8  # of one size
_MAX_SIZES = 64


class Buffers:
    """Lends memory for batches and takes it back when the last tensor on it is gone.

    Whoever keeps a batch, or a view of it, keeps its memory: it is never written to again. With
    CUDA in use, memory is page-locked and comes from PyTorch, which reuses it after all copies to
    the device that were begun. What is free is kept, as long as there are few sizes: never more
    than was lent at once of each.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}
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
        """Memory of a size; what was used last is still in the caches."""
        try:
            return self._free[num_bytes].pop()
        except LookupError:  # none was lent so far, or all are in use
            return np.empty(num_bytes, dtype=np.uint8)

    def _take_back(self, key: int, memory: NDArray[np.uint8]) -> None:
        self._lent.pop(key, None)
        if len(self._free) >= _MAX_SIZES and len(memory) not in self._free:
            self._free.clear()  # hardly a size comes twice, as with images of any shape
        self._free.setdefault(len(memory), deque(maxlen=_MAX_FREE)).append(memory)
