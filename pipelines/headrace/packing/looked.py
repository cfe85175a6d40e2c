"""Which elements of a field its statistics are made of: all of a small one, a share of a large one.

Of each block of samples one window in `every` is looked at, so that every part of the dataset has
its say. Which one follows from the number of the block's first sample: neither workers nor their
order count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import xxhash

from headrace.packing import statistics
from headrace.packing.statistics import Moments
from headrace.shards.placing import Buffer
from headrace.storage.manifest import FieldInfo

MAX_ELEMENTS = 2**23
"""Elements of a field that are looked at, about, unless all are wanted."""

_COUNTED_BYTES = 2**18  # bytes that moments are taken of at once


def every_of(info: FieldInfo, num_samples: int) -> int:
    """One in how many elements is looked at, so that it is about `MAX_ELEMENTS`; 1 for all.

    Args:
        info: The field.
        num_samples: Samples that count.
    """
    if info.layout == "ragged":
        return 1
    return max(1, math.ceil(num_samples * math.prod(info.shape) / MAX_ELEMENTS))


class Looked:
    """Moments of one field of a shard, block by block.

    Args:
        info: The field, of fixed shape.
        every: One in so many elements is looked at.
    """

    def __init__(self, info: FieldInfo, every: int) -> None:
        self._info = info
        self._every = every
        self._channels = info.shape[-1] if len(info.shape) == 3 else 1
        self._row_bytes = np.dtype(info.dtype).itemsize * self._channels
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._moments: Moments | None = None

    def add(self, items: Sequence[Buffer], sample_id: int) -> None:
        """Look at a block of samples.

        Args:
            items: Bytes of each.
            sample_id: Number of the first.
        """
        item_bytes = len(items[0])
        num_rows = len(items) * item_bytes // self._row_bytes
        if not num_rows:
            return
        size = math.ceil(num_rows / self._every)
        window = _drawn(sample_id, math.ceil(num_rows / size))
        start, stop = window * size, min((window + 1) * size, num_rows)
        pieces = _cut(items, start * self._row_bytes, stop * self._row_bytes)
        self._waiting.append(b"".join(pieces))  # a copy, for views would keep whole files in memory
        self._waiting_bytes += len(self._waiting[-1])
        if self._waiting_bytes >= _COUNTED_BYTES:
            self._count()

    def moments(self) -> Moments | None:
        """Moments of what was looked at; None when no element was finite."""
        self._count()
        return self._moments

    def _count(self) -> None:
        content = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        values = np.frombuffer(content, dtype=self._info.dtype)
        shape = (-1, 1, 1, self._channels) if self._channels > 1 else (-1,)
        found = statistics.moments(values.reshape(shape))
        parts = (part for part in (self._moments, found) if part is not None)
        self._moments = statistics.merge(parts)
        self._waiting, self._waiting_bytes = [], 0


def _drawn(sample_id: int, num_windows: int) -> int:
    """Number of the window of a block that is looked at."""
    return xxhash.xxh3_64_intdigest(sample_id.to_bytes(8, "little")) % num_windows


def _cut(items: Sequence[Buffer], start: int, stop: int) -> list[Buffer]:
    """Bytes `start` to `stop` of items of equal length, one after the other."""
    size = len(items[0])
    first, last = start // size, -(-stop // size)
    pieces: list[Buffer] = list(items[first:last])
    pieces[-1] = pieces[-1][: stop - (last - 1) * size]
    pieces[0] = pieces[0][start - first * size :]
    return pieces
