"""Mean, deviation and range of a field: by shard, then merged in the order of the shards.

Of a large field a share of the elements counts: of each block of samples one window in `every`, so
that all parts of the dataset are covered. Which window follows from the number of the block's first
sample, whatever the number of workers and the order of their work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.files.manifest import FieldInfo, FieldStatistics, LengthStatistics
from headrace.record import Record
from headrace.shards.shard_layout import Buffer

MAX_ELEMENTS = 2**23
"""Elements of a field that count, about, unless all are wanted."""

_COUNTED_BYTES = 2**18  # bytes that moments are taken of at once
_TOO_LARGE = 1e140  # squares of more may overflow: these are not counted, as those not finite
_BLOCK_ELEMENTS = 3 * 2**14  # elements widened to float64 at once: they fit a processor's cache
_LANES = 128  # elements of a channel that are summed side by side
_SUMMED = 256  # values that are summed at once: 256 * 255**2 is below 2**24


class Moments(Record):
    """What is known of a field in one shard, by channel."""

    counts: tuple[int, ...]
    """Finite elements in each channel."""
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    """Sum of squared distances from the mean, of each channel."""
    minimum: float
    maximum: float


class SampledMoments:
    """Moments of one field of a shard, block by block."""

    def __init__(self, info: FieldInfo, every: int) -> None:
        self._dtype = info.dtype
        self._every = every
        self._channels = info.shape[-1] if len(info.shape) == 3 else 1
        self._row_bytes = np.dtype(info.dtype).itemsize * self._channels
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._moments: Moments | None = None

    def add(self, items: Sequence[Buffer], sample_id: int) -> None:
        """Count a block of samples."""
        num_rows = len(items) * len(items[0]) // self._row_bytes
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
        """Moments of all that was counted; None when no element was finite."""
        self._count()
        return self._moments

    def _count(self) -> None:
        values = np.frombuffer(b"".join(self._waiting), dtype=self._dtype)
        shape = (-1, 1, 1, self._channels) if self._channels > 1 else (-1,)
        parts = (self._moments, moments(values.reshape(shape)))
        self._moments = merge(part for part in parts if part is not None)
        self._waiting, self._waiting_bytes = [], 0


def every_of(info: FieldInfo, num_samples: int) -> int:
    """One in how many elements counts, so that about `MAX_ELEMENTS` do; 1 for all."""
    if info.layout == "ragged":
        return 1
    return max(1, math.ceil(num_samples * math.prod(info.shape) / MAX_ELEMENTS))


def moments(values: NDArray[Any]) -> Moments | None:
    """Moments of the finite elements of samples `(num_samples, *shape)`; None if there are none.

    Three-dimensional samples have channels, their last axis; others have one.
    """
    num_channels = values.shape[-1] if values.ndim == 4 else 1
    rows = values.reshape(-1, num_channels)
    if rows.dtype == np.uint8:
        return _of_bytes(rows) if rows.size else None
    step = max(1, _BLOCK_ELEMENTS // num_channels)
    starts = range(0, len(rows), step)
    blocks = (_of_block(rows[start : start + step]) for start in starts)
    return merge(block for block in blocks if block is not None)


def merge(parts: Iterable[Moments]) -> Moments | None:
    """Moments of the union; None for none. The order of the parts fixes the last digits.

    Source: Chan, Golub, LeVeque (1979), Updating formulae for computing sample variances.
    """
    found = list(parts)
    return reduce(_pair, found) if found else None


def finish(found: Moments, every: int = 1) -> FieldStatistics:
    """Statistics as the manifest has them."""
    stds = (
        math.sqrt(deviation / count) if count else 0.0
        for deviation, count in zip(found.deviations, found.counts, strict=True)
    )
    return FieldStatistics(
        count=sum(found.counts),
        every=every,
        mean=found.means,
        std=tuple(stds),
        minimum=found.minimum,
        maximum=found.maximum,
    )


def lengths(sizes: NDArray[np.int64]) -> LengthStatistics:
    """Return statistics of the sizes of one or more samples."""
    return LengthStatistics(
        count=len(sizes),
        total_bytes=int(sizes.sum()),
        minimum_bytes=int(sizes.min()),
        maximum_bytes=int(sizes.max()),
    )


def merge_lengths(parts: Sequence[LengthStatistics]) -> LengthStatistics:
    """Statistics of the union of several."""
    return LengthStatistics(
        count=sum(part.count for part in parts),
        total_bytes=sum(part.total_bytes for part in parts),
        minimum_bytes=min(part.minimum_bytes for part in parts),
        maximum_bytes=max(part.maximum_bytes for part in parts),
    )


def _of_block(rows: NDArray[Any]) -> Moments | None:
    """Moments of `(num_rows, num_channels)`."""
    wide = np.array(rows, dtype=np.float64, order="F")  # a copy, channels side by side
    finite = np.abs(wide) < _TOO_LARGE
    if not finite.any():
        return None
    counts = finite.sum(axis=0)
    minimum = wide.min(where=finite, initial=np.inf)
    maximum = wide.max(where=finite, initial=-np.inf)
    wide[~finite] = 0
    means = wide.sum(axis=0) / np.maximum(counts, 1)
    wide -= means
    wide[~finite] = 0
    return Moments(
        counts=tuple(counts.tolist()),
        means=tuple(means.tolist()),
        deviations=tuple(np.square(wide).sum(axis=0).tolist()),
        minimum=float(minimum),
        maximum=float(maximum),
    )


def _of_bytes(rows: NDArray[np.uint8]) -> Moments:
    """As `_of_block`, many times as fast: sums of integers below 2**24 are exact in float32."""
    num_rows, num_channels = rows.shape
    width = _LANES * num_channels
    flat = rows.reshape(-1)
    sums = np.zeros(width, dtype=np.float64)
    squares = np.zeros(width, dtype=np.float64)
    wide = np.empty((min(_SUMMED, -(-len(flat) // width)), width), dtype=np.float32)
    for start in range(0, len(flat), wide.size):
        part = flat[start : start + wide.size]
        block = wide[: -(-len(part) // width)]
        lanes = block.reshape(-1)
        lanes[: len(part)] = part
        lanes[len(part) :] = 0
        sums += block.sum(axis=0)
        squares += np.einsum("ij,ij->j", block, block)
    both = np.stack([sums, squares]).reshape(2, -1, num_channels).sum(axis=1)
    pairs = [(int(total), int(square)) for total, square in both.T]  # exact below 2**53
    return Moments(
        counts=(num_rows,) * num_channels,
        means=tuple(total / num_rows for total, _ in pairs),
        deviations=tuple((num_rows * square - total**2) / num_rows for total, square in pairs),
        minimum=float(flat.min()),
        maximum=float(flat.max()),
    )


def _pair(a: Moments, b: Moments) -> Moments:
    counts_a, counts_b = np.array(a.counts), np.array(b.counts)
    counts = counts_a + counts_b
    share = counts_b / np.maximum(counts, 1)
    shift = np.array(b.means) - np.array(a.means)
    means = np.array(a.means) + shift * share
    deviations = np.array(a.deviations) + np.array(b.deviations) + shift**2 * counts_a * share
    return Moments(
        counts=tuple(counts.tolist()),
        means=tuple(means.tolist()),
        deviations=tuple(deviations.tolist()),
        minimum=min(a.minimum, b.minimum),
        maximum=max(a.maximum, b.maximum),
    )


def _drawn(sample_id: int, num_windows: int) -> int:
    return xxhash.xxh3_64_intdigest(sample_id.to_bytes(8, "little")) % num_windows


def _cut(items: Sequence[Buffer], start: int, stop: int) -> list[Buffer]:
    """Bytes `start` to `stop` of items of equal length, one after the other."""
    size = len(items[0])
    first, last = start // size, -(-stop // size)
    pieces: list[Buffer] = list(items[first:last])
    pieces[-1] = pieces[-1][: stop - (last - 1) * size]
    pieces[0] = pieces[0][start - first * size :]
    return pieces
