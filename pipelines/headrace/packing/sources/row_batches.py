"""How many rows of containers are read at once: few enough for the memory, and as many as fit.

Samples of a shard come in random order, so each reading goes over all parts that it lies in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile

from headrace.packing.samples import READ_BYTES, SampleRef, Unreadable, Values

_FIRST_ROWS = 256
_MOST_ROWS = 2**15


def read_in_batches(
    refs: Sequence[SampleRef], read: Callable[[Sequence[SampleRef]], list[Values | Unreadable]]
) -> Iterator[Values | Unreadable]:
    """Values of samples, in order; about `READ_BYTES` of them are in memory at once.

    Args:
        refs: The samples.
        read: Reads some of them.
    """
    start, most, row_bytes = 0, _FIRST_ROWS, 0
    while start < len(refs):
        stop = start + _num_fitting(refs[start : start + most], row_bytes)
        values = read(refs[start:stop])
        row_bytes = sum(map(_num_bytes, values)) // len(values)
        yield from values
        del values  # before the next are read
        start, most = stop, _MOST_ROWS


def _num_fitting(refs: Sequence[SampleRef], row_bytes: int) -> int:
    """How many of the first samples are read at once; one at least.

    Args:
        refs: Samples.
        row_bytes: What one took of those before; 0 when there were none.
    """
    ends = accumulate(max(ref.num_bytes, row_bytes) for ref in refs)
    return max(1, sum(1 for _ in takewhile(READ_BYTES.__ge__, ends)))


def _num_bytes(values: Values | Unreadable) -> int:
    if isinstance(values, Unreadable):
        return 0
    return sum(
        len(value) if isinstance(value, bytes | str) else getattr(value, "nbytes", 8)
        for value in values.values()
    )
