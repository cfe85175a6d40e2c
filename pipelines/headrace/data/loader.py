"""Batches straight from the shards: one gather a field, no Python loop over samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from torch import Tensor

from headrace.data.ahead import read_ahead
from headrace.data.collate import collate, varies
from headrace.data.decode import Decoder
from headrace.data.gather import Found, Gatherer
from headrace.data.order import Indices, Order
from headrace.errors import StepError
from headrace.shards.dataset import ShardedDataset

Batch = dict[str, Any]
"""Fields by name, and `sample_id (batch,) int64`.

Each is a tensor `(batch, *shape)`; fields that vary in shape by nature, such as text and arrays of
varying length, are lists of samples unless they are filled up, see `headrace.data.collate`.
"""

SAMPLE_ID = "sample_id"

_TOGETHER_BYTES = 4 * 2**20
_MAX_TOGETHER = 16
_MAX_FOUND = 64  # batches whose samples are looked up at once

ReadBatch = Callable[[int, int], Batch]
"""Reads batch `number` of an epoch in a way of its own: `(epoch, number) -> batch`."""


def read_batch(
    dataset: ShardedDataset,
    indices: Indices,
    fields: Sequence[str],
    decoder: Decoder,
    pad: float | None = None,
) -> Batch:
    """Read samples of a split, as `gather_batch`, but into memory of their own."""
    return gather_batch(Gatherer(dataset), indices, fields, decoder, pad)


def gather_batch(
    gatherer: Gatherer,
    indices: Indices,
    fields: Sequence[str],
    decoder: Decoder,
    pad: float | None = None,
) -> Batch:
    """Read samples of a split.

    Args:
        gatherer: Gathers fixed fields of the split.
        indices: Places in the split, `(batch,) int64`.
        fields: Names of the fields wanted.
        decoder: Decodes fields that hold encoded samples.
        pad: Fills up arrays of varying length; None gives lists.

    Raises:
        DataError: Encoded samples of one batch differ in shape, or cannot be decoded.
        ShardError: A shard is damaged.
    """
    dataset = gatherer.dataset
    infos = [dataset.field(name) for name in (*fields, SAMPLE_ID)]
    with dataset.holding(indices):
        batch: Batch = {}
        batch |= gatherer.gather([info for info in infos if info.layout == "fixed"], indices)
        for info in infos:
            if info.layout == "ragged":
                items = decoder.decode(dataset, info, indices, gatherer.lend)
                sources = partial(dataset.sources, indices)
                batch |= (
                    {info.name: items}
                    if isinstance(items, Tensor)
                    else collate(info.name, items, sources, varying=varies(info), pad=pad)
                )
    return batch


class CopiedBatches:
    """Reads batches of an epoch one after the other, when all fields are of fixed shape.

    Where samples lie is looked up for more and more batches at once.

    Args:
        gatherer: Gathers samples of the split.
        order: Which samples make up which batch.
        fields: Names of the fields wanted.
        epoch: The epoch.
        numbers: Numbers of the batches that will be read, in this order.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        order: Order,
        fields: Sequence[str],
        epoch: int,
        numbers: Sequence[int],
    ) -> None:
        self._gatherer = gatherer
        self._order = order
        self._infos = [gatherer.dataset.field(name) for name in (*fields, SAMPLE_ID)]
        self._epoch = epoch
        self._left = numbers
        self._found: dict[int, tuple[Found, int, int]] = {}
        self._num_found = 1
        self._waits = not gatherer.dataset.places.is_whole  # for no shards but those of the batch

    def __call__(self, number: int) -> Batch:
        """The next batch."""
        dataset = self._gatherer.dataset
        if self._waits:
            indices = self._order.batch(self._epoch, number)
            with dataset.holding(indices):
                return dict(self._gatherer.gather(self._infos, indices))
        if number not in self._found:
            self._find()
        return dict(self._gatherer.take(*self._found.pop(number)))

    def _find(self) -> None:
        numbers, self._left = self._left[: self._num_found], self._left[self._num_found :]
        self._num_found = min(2 * self._num_found, _MAX_FOUND)
        parts = [self._order.batch(self._epoch, number) for number in numbers]
        if not self._left:
            self._order.batch(self._epoch + 1, 0)  # so that the next epoch begins at once
        found = self._gatherer.find(self._infos, np.concatenate(parts))
        stops = accumulate(len(part) for part in parts)
        for number, part, stop in zip(numbers, parts, stops, strict=True):
            self._found[number] = found, stop - len(part), stop


class BatchLoader:
    """Iterates over the batches of an order; what Lightning takes for a DataLoader.

    While a batch is worked on, threads read the next ones. The position is counted in batches
    handed out, so reading ahead does not change it.

    Args:
        dataset: The split.
        order: Which samples make up which batch.
        fields: Names of the fields wanted; default is all.
        prefetch: Batches read ahead, by half as many threads; small ones are handed over several
            at once (up to 4 MiB) and count as one. 0 reads a batch when it is asked for.
        read: Reads a batch in place of `read_batch`; called from the loader's threads.

    Attributes:
        wait_s: Seconds spent waiting for batches so far.
        num_samples: Samples handed out so far.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        order: Order,
        *,
        fields: Sequence[str] | None = None,
        prefetch: int = 4,
        read: ReadBatch | None = None,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.wait_s = 0.0
        self.num_samples = 0
        self._fields = tuple(fields or (info.name for info in dataset.manifest.fields))
        self._prefetch = prefetch
        self._decoder = Decoder()
        self._gatherer = Gatherer(dataset)
        self._read_instead = read
        self._epoch = 0
        self._start = 0
        self._position = 0

    def __len__(self) -> int:
        """Batches of a whole epoch, also when the next pass starts in the middle of one."""
        return self.order.num_batches

    @property
    def sampler(self) -> BatchLoader:
        """Itself: Lightning calls `set_epoch` on a loader's sampler."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None: Lightning looks whether there is one."""
        return

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keeps the position when it is in that epoch already."""
        if epoch != self._epoch:
            self._epoch, self._start, self._position = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Position in training, valid for any world size."""
        return {"epoch": self._epoch, "global_index": self._position * self.order.batch_span}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position that `state_dict` gave.

        Raises:
            StepError: The position is not at a batch boundary of this order.
        """
        number, rest = divmod(state["global_index"], self.order.batch_span)
        if number == self.order.num_batches + 1:  # a short last batch that other ranks could share
            number = self.order.num_batches
        if rest or number > self.order.num_batches:
            raise StepError(
                f"Position {state['global_index']} of epoch {state['epoch']} is no boundary of "
                f"batches of {self.order.batch_span}",
                "Resume with the global batch size that the checkpoint was made with.",
            )
        self._epoch, self._start, self._position = state["epoch"], number, number

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the position on; epoch and position are looked up at the first one."""
        start, self._start = self._start, 0
        epoch, stop, number = self._epoch, self.order.num_batches, start
        began = time.perf_counter()
        numbers = range(start, stop)
        begin = partial(self._begin, epoch)
        batches = read_ahead(begin, numbers, self._prefetch, self._together())
        with closing(batches):
            for batch in batches:
                self.wait_s += time.perf_counter() - began
                self.num_samples += len(batch[SAMPLE_ID])
                number += 1
                self._position = number
                yield batch
                del batch  # its memory is used again when the caller drops it, too
                began = time.perf_counter()

    def _together(self) -> int:
        """Batches handed over at once."""
        if not self._is_copied():
            return 1
        infos = [self.dataset.field(name) for name in self._fields]
        sample_bytes = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in infos)
        batch_bytes = max(sample_bytes * self.order.batch_span, 1)
        return max(min(_TOGETHER_BYTES // batch_bytes, _MAX_TOGETHER), 1)

    def _is_copied(self) -> bool:
        fields = [self.dataset.field(name) for name in self._fields]
        return self._read_instead is None and all(info.layout == "fixed" for info in fields)

    def _begin(self, epoch: int, numbers: Sequence[int]) -> Callable[[int], Batch]:
        """How batches of an epoch are read."""
        if self._read_instead is not None:
            return partial(self._read_instead, epoch)
        if self._is_copied():
            return CopiedBatches(self._gatherer, self.order, self._fields, epoch, numbers)
        return partial(self._read, epoch)

    def _read(self, epoch: int, number: int) -> Batch:
        indices = self.order.batch(epoch, number)
        return gather_batch(self._gatherer, indices, self._fields, self._decoder)
