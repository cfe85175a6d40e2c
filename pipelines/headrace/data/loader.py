"""Batches straight from the shards: one gather a field, no Python loop over samples."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor

from headrace.data.ahead import read_ahead, read_at_pace
from headrace.data.collate import collate, varies
from headrace.data.decode import Decoder
from headrace.data.gather import Found, Gatherer
from headrace.data.order import Indices, Order
from headrace.data.pace import Pace
from headrace.errors import StepError
from headrace.shards.dataset import ShardedDataset

Batch = dict[str, Any]
"""Fields by name, and `sample_id (batch,) int64`.

Each is a tensor `(batch, *shape)`; fields that vary in shape by nature, such as text and arrays of
varying length, are lists of samples unless they are filled up, see `headrace.data.collate`.
"""

SAMPLE_ID = "sample_id"

_TOGETHER_BYTES = 8 * 2**20
_MAX_TOGETHER = 16
_MAX_FOUND = 32  # groups whose samples are looked up at once

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
    """Reads groups of batches one after the other, when all fields are of fixed shape.

    Where samples lie is looked up for more and more groups at once. Batches of a group share their
    memory.

    Args:
        gatherer: Gathers samples of the split.
        order: Which samples make up which batch.
        fields: Names of the fields wanted.
        epoch: The epoch.
        groups: Numbers of the batches of each group; they will be read in this order.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        order: Order,
        fields: Sequence[str],
        epoch: int,
        groups: Sequence[range],
    ) -> None:
        self._gatherer = gatherer
        self._order = order
        self._infos = [gatherer.dataset.field(name) for name in (*fields, SAMPLE_ID)]
        self._epoch = epoch
        self._left = groups
        self._found: dict[range, tuple[Found, int, list[int]]] = {}
        self._num_found = 1
        self._waits = not gatherer.dataset.places.is_whole  # for no shards but those of the group

    def __call__(self, group: range) -> deque[Batch]:
        """The next group."""
        if self._waits:
            parts = self._parts(group)
            indices = np.concatenate(parts)
            with self._gatherer.dataset.holding(indices):
                whole = self._gatherer.gather(self._infos, indices)
            return _split(whole, [len(part) for part in parts])
        if group not in self._found:
            self._find()
        found, start, sizes = self._found.pop(group)
        return _split(self._gatherer.take(found, start, start + sum(sizes)), sizes)

    def _parts(self, group: range) -> list[Indices]:
        return [self._order.batch(self._epoch, number) for number in group]

    def _find(self) -> None:
        groups, self._left = self._left[: self._num_found], self._left[self._num_found :]
        self._num_found = min(2 * self._num_found, _MAX_FOUND)
        parts = [self._parts(group) for group in groups]
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


class BatchLoader:
    """Iterates over the batches of an order; what Lightning takes for a DataLoader.

    While a batch is worked on, threads read the next ones. The position is counted in batches
    handed out, so reading ahead does not change it.

    Args:
        dataset: The split.
        order: Which samples make up which batch.
        fields: Names of the fields wanted; default is all.
        prefetch: Batches read ahead, by half as many threads; 0 reads a batch when it is asked
            for. Small ones are read several in one go (up to 8 MiB), and count as one. Copies out
            of memory are not made ahead as long as nobody works on the batches, see `Pace`.
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
        self._pace = Pace()
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
        epoch, number = self._epoch, start
        began = time.perf_counter()
        with closing(self._read_groups(epoch, start)) as groups:
            for group in groups:
                while group:
                    batch = group.popleft()
                    self.wait_s += time.perf_counter() - began
                    self.num_samples += batch[SAMPLE_ID].shape[0]
                    number += 1
                    self._position = number
                    yield batch
                    del batch  # its memory is used again when the caller drops it, too
                    began = time.perf_counter()

    def _read_groups(self, epoch: int, start: int) -> Generator[deque[Batch], None, None]:
        begin, groups = partial(self._begin, epoch), self._groups(start)
        is_plain = all(self.dataset.field(name).codec == "none" for name in self._fields)
        if is_plain and self._is_copied() and self.dataset.places.is_whole:
            return read_at_pace(begin, groups, self._prefetch, self._pace)
        return read_ahead(begin, groups, self._prefetch)

    def _groups(self, start: int) -> list[range]:
        """Batches of an epoch that are read at once."""
        numbers, step = range(start, self.order.num_batches), self._together()
        return [numbers[first : first + step] for first in range(0, len(numbers), step)]

    def _together(self) -> int:
        """Batches of a group: small ones in one go."""
        if not self._is_copied() or not self.dataset.places.is_whole:
            return 1
        infos = [self.dataset.field(name) for name in self._fields]
        sample_bytes = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in infos)
        batch_bytes = max(sample_bytes * self.order.batch_span, 1)
        return max(min(_TOGETHER_BYTES // batch_bytes, _MAX_TOGETHER), 1)

    def _is_copied(self) -> bool:
        fields = [self.dataset.field(name) for name in self._fields]
        return self._read_instead is None and all(info.layout == "fixed" for info in fields)

    def _begin(self, epoch: int, groups: Sequence[range]) -> Callable[[range], deque[Batch]]:
        """How groups of an epoch are read."""
        if self._is_copied():
            return CopiedBatches(self._gatherer, self.order, self._fields, epoch, groups)
        read = self._read_instead or self._read
        return lambda group: deque(read(epoch, number) for number in group)

    def _read(self, epoch: int, number: int) -> Batch:
        indices = self.order.batch(epoch, number)
        return gather_batch(self._gatherer, indices, self._fields, self._decoder)
