"""Which shard holds a sample, for many samples at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAX_SPANS = 2**20


class ShardSearch:
    """Finds the shards of samples.

    The samples are cut into spans that no more than two shards share, so that the shard of a
    sample is that of the first of its span, or the next one: less than half the time of a search
    among the ends, which counts when samples are small. Only when some shard is so small that
    there were too many spans, the ends are searched.

    Args:
        ends: Place behind the last sample of each shard, `(num_shards,) int64`, ascending.
    """

    def __init__(self, ends: NDArray[np.int64]) -> None:
        self._ends = ends
        self._firsts: NDArray[np.int64] | None = None
        num_samples = int(ends[-1]) if len(ends) else 0
        smallest = int(np.diff(ends[:-1], prepend=0).min(initial=num_samples))
        self._shift = smallest.bit_length() - 1
        if smallest and num_samples >> self._shift <= _MAX_SPANS:
            starts = np.arange(0, num_samples, 1 << self._shift, dtype=np.int64)
            self._firsts = ends.searchsorted(starts, side="right")

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of the shard of each sample, `(n,) int64`.

        Args:
            places: Places in the split, `(n,) int64`, all within it.
        """
        if self._firsts is None:
            return self._ends.searchsorted(places, side="right")
        found: NDArray[np.int64] = self._firsts[places >> self._shift]
        found += places >= self._ends[found]
        return found
