"""Mean, deviation and range of a field: by shard, then merged in the order of the shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.record import Record
from headrace.storage.manifest import FieldStatistics, LengthStatistics

_BLOCK_ELEMENTS = 3 * 2**14  # elements widened to float64 at once: they fit a processor's cache

_LANES = 128  # elements of a channel that are summed side by side
_SUMMED = 256  # of which so many are summed: 256 * 255**2 is below 2**24


class Moments(Record):
    """What is known of a field in one shard, by channel."""

    counts: tuple[int, ...]
    """Finite elements in each channel."""
    means: tuple[float, ...]
    """Mean of each channel."""
    deviations: tuple[float, ...]
    """Sum of squared distances from the mean, of each channel."""
    minimum: float
    """Smallest finite element."""
    maximum: float
    """Largest finite element."""


def moments(values: NDArray[Any]) -> Moments | None:
    """Moments of the finite elements.

    Args:
        values: Samples `(num_samples, *shape)`; with three-dimensional samples the last axis is
            that of the channels, else there is one channel.

    Returns:
        None when there is no finite element.
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
    merged: Moments | None = None
    for part in parts:
        merged = part if merged is None else _pair(merged, part)
    return merged


def finish(found: Moments, every: int = 1) -> FieldStatistics:
    """Statistics as the manifest has them.

    Args:
        found: Moments of the elements that were looked at.
        every: One in how many these are.
    """
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
    """Statistics of the sizes of samples, of which there is one at least."""
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
    if rows.dtype.kind == "f":
        finite = np.isfinite(wide)
        if not finite.all():
            return _of_finite(wide, finite)
    means = wide.mean(axis=0)
    wide_minimum, wide_maximum = float(wide.min()), float(wide.max())
    wide -= means
    return Moments(
        counts=(len(rows),) * rows.shape[1],
        means=tuple(means.tolist()),
        deviations=tuple(np.square(wide).sum(axis=0).tolist()),
        minimum=wide_minimum,
        maximum=wide_maximum,
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
    totals, powers = (_by_channel(each, num_channels) for each in (sums, squares))
    pairs = list(zip(totals, powers, strict=True))
    return Moments(
        counts=(num_rows,) * num_channels,
        means=tuple(total / num_rows for total, _ in pairs),
        deviations=tuple((num_rows * square - total**2) / num_rows for total, square in pairs),
        minimum=float(flat.min()),
        maximum=float(flat.max()),
    )


def _by_channel(sums: NDArray[np.float64], num_channels: int) -> list[int]:
    """Sums of whole numbers over the lanes of each channel; exact below 2**53."""
    return [int(total) for total in sums.reshape(-1, num_channels).sum(axis=0)]


def _of_finite(wide: NDArray[np.float64], finite: NDArray[np.bool_]) -> Moments | None:
    """As `_of_block`, where some elements are not finite."""
    if not finite.any():
        return None
    counts = finite.sum(axis=0)
    zeroed = np.where(finite, wide, 0.0)
    means = zeroed.sum(axis=0) / np.maximum(counts, 1)
    deviations = (np.where(finite, wide - means, 0.0) ** 2).sum(axis=0)
    return Moments(
        counts=tuple(counts.tolist()),
        means=tuple(means.tolist()),
        deviations=tuple(deviations.tolist()),
        minimum=float(wide[finite].min()),
        maximum=float(wide[finite].max()),
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
