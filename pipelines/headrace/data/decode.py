"""Decodes batches of encoded samples to arrays, in threads."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from headrace.data.sampling import Indices
from headrace.data.transforms import varies
from headrace.errors import ShardError, UnreadableError
from headrace.fields.field_kind import Kind, kind_of_encoding
from headrace.files.manifest import FieldInfo
from headrace.shards.dataset import ShardedDataset
from headrace.shards.format import MEND

Lend = Callable[[int], Tensor]
"""Returns memory of so many bytes, `(num_bytes,) uint8`."""

CropOf = Callable[[Kind, int, bytes], NDArray[np.uint8]]
"""Decodes part of the n-th image of a batch."""

_SLICES = 4  # parts of a thread's share of a batch, so that no thread waits long for the others


class _Side:
    """Samples of a batch side by side in one memory, as long as they have one shape.

    Without `lend`, which provides the memory, each is kept separately.
    """

    def __init__(self, count: int, lend: Lend | None) -> None:
        self.items: list[Any] = [None] * count
        self.whole: Tensor | None = None
        self._lend = lend
        self._values: NDArray[Any] | None = None
        self._opening = threading.Lock()

    def put(self, place: int, array: NDArray[Any]) -> None:
        """Copy a sample; several threads may do so at once."""
        if self._lend is not None:
            with self._opening:
                if self._values is None:
                    self._values = self._opened(array, self._lend)
            if (array.shape, array.dtype) == (self._values.shape[1:], self._values.dtype):
                self._values[place] = array
                self.items[place] = self._values[place]
                return
            self.whole = None
        self.items[place] = array if array.flags.writeable else array.copy()

    def _opened(self, array: NDArray[Any], lend: Lend) -> NDArray[Any]:
        count = len(self.items)
        memory = lend(count * array.nbytes)
        values = memory.numpy().view(array.dtype).reshape(count, *array.shape)
        self.whole = torch.from_numpy(values)
        return values


class Decoder:
    """Decodes batches of encoded samples; starts its threads at the first use in each process.

    One thread per core of this rank; one in a worker of torch's DataLoader, whose number the user
    chooses.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def __reduce__(self) -> tuple[object, ...]:
        return Decoder, ()

    def decode(
        self,
        dataset: ShardedDataset,
        info: FieldInfo,
        indices: Indices,
        lend: Lend | None = None,
        crop: CropOf | None = None,
    ) -> list[Any] | Tensor:
        """Read and decode samples of a ragged field; raise `DataError` if one cannot be decoded.

        Returns one array per sample, text as `str`; with `lend`, images of one shape as
        `(batch, *shape)`. `crop` takes the place of the kind's `decode`.
        """
        with dataset.holding(indices):
            items = dataset.items(info.name, indices)
            if info.encoding == "raw":
                return _arrays(dataset, info, indices, items)
            kind = kind_of_encoding(info.encoding, info.orientation)

            def decoded(at: int) -> Any:
                content = items[at].tobytes()
                try:
                    return crop(kind, at, content) if crop else kind.decode(content)
                except UnreadableError as error:
                    (name,) = dataset.sources(indices[at : at + 1])
                    raise UnreadableError(
                        f"{name}, field '{info.name}': {error.what}", MEND
                    ) from error

            if kind.is_text:
                return [decoded(at) for at in range(len(items))]
            side = _Side(len(items), None if varies(info) else lend)
            self._fill(side, decoded)
            return side.items if side.whole is None else side.whole

    def _fill(self, side: _Side, decoded: Callable[[int], Any]) -> None:
        def decode(places: range) -> None:
            for place in places:
                side.put(place, decoded(place))

        num_items = len(side.items)
        count = min(num_items, num_cores() * _SLICES)
        threads = self._threads()
        parts = [threads.submit(decode, range(first, num_items, count)) for first in range(count)]
        wait(parts)  # also after an error: shards may be unmapped after that
        for part in parts:
            part.result()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # threads do not survive a fork
            self._pool = ThreadPoolExecutor(num_cores(), thread_name_prefix="headrace-decode")
            self._pid = os.getpid()
        return self._pool


def _arrays(
    dataset: ShardedDataset, info: FieldInfo, indices: Indices, items: Sequence[NDArray[np.uint8]]
) -> list[NDArray[Any]]:
    dtype = np.dtype(info.dtype)
    shapes: Sequence[Sequence[int]] = [(len(item) // dtype.itemsize,) for item in items]
    if info.ndim is not None:
        shapes = dataset.shapes(info.name, indices).tolist()
    for place, (item, shape) in enumerate(zip(items, shapes, strict=True)):
        if math.prod(shape) * dtype.itemsize != len(item):
            (name,) = dataset.sources(indices[place : place + 1])
            raise ShardError(
                f"Bytes and shape of '{info.name}' do not fit each other: {name}", MEND
            )
    both = zip(items, shapes, strict=True)
    return [np.array(item).view(dtype).reshape(shape) for item, shape in both]


def num_cores() -> int:
    """Return how many cores this process may use: its share of those that the node's ranks have.

    1 in a worker of torch's DataLoader, which is one of many.
    """
    if get_worker_info() is not None:
        return 1
    cores = len(os.sched_getaffinity(0))
    threads = min(int(os.environ.get("OMP_NUM_THREADS") or 1), cores)  # ranks may be bound to cores
    return max(cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1), threads, 1)
