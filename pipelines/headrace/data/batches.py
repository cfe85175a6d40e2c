"""The ways to read the batches of an order; which one, is chosen in `way_to_read`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Protocol

import numpy as np
from torch import Tensor

from headrace.data.batch import SAMPLE_ID, Batch
from headrace.data.gather import Found, Gatherer
from headrace.data.order import Indices, Order, TrainOrder
from headrace.data.reading import SampleReader
from headrace.data.seeding import position_seed
from headrace.data.streaming import ReadAhead
from headrace.storage.manifest import FieldInfo

_TOGETHER_BYTES = 8 * 2**20
_MAX_TOGETHER = 16
_FOUND_SAMPLES = 2**14  # looked up at once: what that takes stays in the processor's cache

ReadGroup = Callable[[range], deque[Batch]]
"""Reads the batches of these numbers; used by one thread."""


class Way(Protocol):
    """A way to read batches; asked by several threads at once."""

    @property
    def num_together(self) -> int:
        """Batches that are best read in one go."""

    @property
    def only_copies(self) -> bool:
        """Whether batches lie in memory as they are, so that only work hides the time it takes."""

    def begin(self, epoch: int, groups: Sequence[range]) -> ReadGroup:
        """Get ready to read groups of an epoch's batches, by one thread and in this order."""


def way_to_read(reader: SampleReader, order: Order, ahead: ReadAhead | None) -> Way:
    """How batches are read from now on; once all shards are there it may be another way.

    Args:
        reader: Reads samples.
        order: Which samples make up which batch.
        ahead: Fetches shards that are not on this node; None when all are, or come by themselves.
    """
    is_fixed = all(info.layout == "fixed" for info in reader.fields)
    if is_fixed and not reader.reading.is_special and reader.dataset.places.is_whole:
        return InGroups(reader, order)
    return OneByOne(reader, order, ahead)


class OneByOne:
    """Reads each batch for itself: decoded, transformed, verified, or from shards that move.

    Samples of a `TrainOrder` get random numbers that depend on seed, epoch and place in the global
    order only, so on no world size.

    Args:
        reader: Reads samples.
        order: Which samples make up which batch.
        ahead: Fetches shards that are not on this node; None when all are, or come by themselves.
    """

    num_together = 1
    only_copies = False

    def __init__(self, reader: SampleReader, order: Order, ahead: ReadAhead | None = None) -> None:
        self._reader = reader
        self._order = order
        self._ahead = ahead

    def begin(self, epoch: int, groups: Sequence[range]) -> ReadGroup:
        """See `Way`."""
        del groups
        return lambda group: deque(self.read(epoch, number) for number in group)

    def read(self, epoch: int, number: int) -> Batch:
        """Batch `number` of an epoch; errors as `SampleReader.read` and `ReadAhead.reading`."""
        with self._ahead.reading(epoch, number) if self._ahead is not None else nullcontext():
            indices = self._order.batch(epoch, number)
            return self._reader.read(indices, self._seeds(epoch, number, len(indices)))

    def _seeds(self, epoch: int, number: int, share: int) -> list[int] | None:
        order = self._order
        if not isinstance(order, TrainOrder) or not self._reader.reading.transforms:
            return None
        first = number * order.global_batch_size + order.rank * share
        places = range(first, first + share)
        return [position_seed(order.seed, epoch, place, 0, "sample") for place in places]


class InGroups:
    """Reads small batches several in one go (up to 8 MiB), when all fields are of fixed shape.

    Args:
        reader: Reads samples of a split whose shards are all mapped.
        order: Which samples make up which batch.
    """

    def __init__(self, reader: SampleReader, order: Order) -> None:
        self._gatherer = reader.gatherer
        self._order = order
        self._infos = (*reader.fields, reader.dataset.field(SAMPLE_ID))
        sample_bytes = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in reader.fields)
        batch_bytes = max(sample_bytes * order.batch_span, 1)
        self.num_together = max(min(_TOGETHER_BYTES // batch_bytes, _MAX_TOGETHER), 1)
        self.only_copies = all(info.codec == "none" for info in reader.fields)

    def begin(self, epoch: int, groups: Sequence[range]) -> ReadGroup:
        """See `Way`."""
        return _Groups(self._gatherer, self._infos, self._order, epoch, groups)


class _Groups:
    """Reads groups one after the other; where samples lie is looked up for many groups at once.

    For the first group alone, so that it comes at once.

    Batches of a group share their memory.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        infos: Sequence[FieldInfo],
        order: Order,
        epoch: int,
        groups: Sequence[range],
    ) -> None:
        self._gatherer = gatherer
        self._infos = infos
        self._order = order
        self._epoch = epoch
        self._left = groups
        self._found: dict[range, tuple[Found, int, list[int]]] = {}
        self._num_found = 1

    def __call__(self, group: range) -> deque[Batch]:
        """The next group."""
        if group not in self._found:
            self._find()
        found, start, sizes = self._found.pop(group)
        return _split(self._gatherer.take(found, start, start + sum(sizes)), sizes)

    def _parts(self, group: range) -> list[Indices]:
        return [self._order.batch(self._epoch, number) for number in group]

    def _find(self) -> None:
        groups, self._left = self._left[: self._num_found], self._left[self._num_found :]
        parts = [self._parts(group) for group in groups]
        num_samples = sum(map(len, chain.from_iterable(parts)))
        self._num_found = max(_FOUND_SAMPLES * len(groups) // max(num_samples, 1), 1)
        if not self._left:
            self._order.batch(self._epoch + 1, 0)  # so that the next epoch begins at once
        found = self._gatherer.find(self._infos, np.concatenate([*chain.from_iterable(parts)]))
        start = 0
        for group, its_parts in zip(groups, parts, strict=True):
            sizes = [len(part) for part in its_parts]
            self._found[group] = found, start, sizes
            start += sum(sizes)


def _split(whole: dict[str, Tensor], sizes: list[int]) -> deque[Batch]:
    """Views of a group's memory, one batch each; a call a field, as a batch takes little longer."""
    if len(sizes) == 1:
        return deque([dict(whole)])
    columns = [values.split_with_sizes(sizes) for values in whole.values()]
    names = tuple(whole)
    return deque(dict(zip(names, values)) for values in zip(*columns))  # noqa: B905  no time
