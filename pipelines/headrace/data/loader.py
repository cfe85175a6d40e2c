"""The loader: batches of an order, read ahead, with a position that can be saved."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from torch import Tensor

from headrace.data.ahead import Payoff, read_ahead, read_ahead_as
from headrace.data.dataset import Reading, SampleReader
from headrace.data.order import Order, TrainOrder
from headrace.data.sampling import position_seed
from headrace.data.streaming import ReadAhead
from headrace.data.transforms import SAMPLE_ID, Batch
from headrace.data.workers import Workers
from headrace.errors import StepError
from headrace.shards.dataset import ShardedDataset

_TOGETHER_BYTES = 8 * 2**20
_MAX_TOGETHER = 16
_FOUND_SAMPLES = 2**14  # looked up at once: their addresses stay in the processor's cache

Batches = deque[Batch]
"""Batches of consecutive numbers, made at once."""


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """How a pass makes its batches, decided when it begins: shards may have arrived meanwhile."""

    is_gathered: bool
    """All fields have a fixed shape, all shards are mapped, and nothing else is done."""
    num_together: int = 1
    """Batches that are made at once: small ones that are gathered, up to 8 MiB."""
    only_copies: bool = False
    """Whether gathering decompresses nothing, so that making batches ahead may not pay."""

    @classmethod
    def of(cls, reader: SampleReader, order: Order) -> ReadPlan:
        """Return the plan for the batches of an order."""
        if reader.ragged or reader.reading.is_special or not reader.dataset.places.is_whole:
            return cls(is_gathered=False)
        fields = [info for info in reader.fixed if info.name != SAMPLE_ID]
        sample_bytes = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in fields)
        num_fitting = _TOGETHER_BYTES // max(sample_bytes * order.batch_span, 1)
        return cls(
            is_gathered=True,
            num_together=max(min(num_fitting, _MAX_TOGETHER), 1),
            only_copies=all(info.codec == "none" for info in fields),
        )


class BatchLoader:
    """Batches of a `dataset` in an `order`; Lightning uses it as a DataLoader.

    While a batch is in use, threads or worker processes make the next ones. The position counts
    batches handed out, so reading ahead does not change it.

    Memory is that of `prefetch` batches (or groups of small ones), and of those that the caller
    keeps. There is one pass at a time: an abandoned pass ends with its iterator. Without
    `set_epoch` the next pass takes the same epoch again.

    `fields` are the names of the wanted fields, by default all; `reading` makes samples of them.
    `prefetch` batches are read ahead, by half as many threads; 0 reads one at a time, on request.
    Several small ones are read at once (up to 8 MiB), and count as one. Copies from memory are not
    made ahead if the caller does no work on them, see `Payoff`. `num_epochs`: None if unknown.

    Attributes:
        wait_s: Seconds spent waiting for batches so far.
        num_samples: Samples handed out so far.
        notes: What users should know about the reading, by subject.
        reader: Reads the samples.
        workers: Processes that may make the batches; None for threads only.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        order: Order,
        *,
        fields: Sequence[str] | None = None,
        prefetch: int = 4,
        reading: Reading | None = None,
        num_epochs: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.wait_s = 0.0
        self.num_samples = 0
        self.notes: dict[str, str] = {}
        self.workers: Workers | None = None
        self._prefetch = prefetch
        self.reader = SampleReader(dataset, reading, fields)
        self._ahead = ReadAhead(dataset, order, num_epochs) if dataset.places.far else None
        self._payoff = Payoff()
        self._epoch = 0
        self._start = 0
        self._position = 0

    def __len__(self) -> int:
        """Return the batches of a whole epoch, also if the next pass starts in the middle."""
        return self.order.num_batches

    @property
    def sampler(self) -> BatchLoader:
        """Itself: Lightning calls `set_epoch` on a loader's sampler."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None; Lightning reads this attribute."""
        return

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; keep the position if it is in that epoch already."""
        if epoch != self._epoch:
            self._epoch, self._start, self._position = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position, valid for any world size: `epoch` and `global_index`.

        The latter counts the samples of the epoch that all ranks together were handed, with the
        batch in use.
        """
        return {"epoch": self._epoch, "global_index": self._position * self.order.batch_span}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position of `state_dict`, with this or another world size.

        The next pass begins there; a running pass must have ended. A `StepError` means that the
        position is not at a batch boundary of this order.
        """
        number, rest = divmod(state["global_index"], self.order.batch_span)
        if number == self.order.num_batches + 1:  # a short last batch that other ranks could share
            number = self.order.num_batches
        if rest or number > self.order.num_batches:
            raise StepError(
                f"Position {state['global_index']} of epoch {state['epoch']} is not a boundary of "
                f"batches of {self.order.batch_span}",
                "Resume with the global batch size of the checkpoint.",
            )
        self._epoch, self._start, self._position = state["epoch"], number, number

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the position on; epoch and position are read at the first one."""
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
                    del batch  # its memory is reused once the caller drops it, too
                    began = time.perf_counter()

    def _read_groups(self, epoch: int, start: int) -> Generator[Batches, None, None]:
        plan = ReadPlan.of(self.reader, self.order)
        numbers, step = range(start, self.order.num_batches), plan.num_together
        groups = [numbers[first : first + step] for first in range(0, len(numbers), step)]
        if plan.is_gathered:
            gather, payoff = partial(self._gathered, epoch), self._payoff
            ahead = gather, self._prefetch
            here = (gather, 0) if plan.only_copies else ahead
            return read_ahead_as(lambda: ahead if payoff.is_ahead else here, groups, payoff.saw)
        make, workers = partial(self._made, epoch, None), self.workers
        if workers is None:
            return read_ahead(make, groups, self._prefetch)
        by_threads = make, self._prefetch
        by_workers = partial(self._made, epoch, workers), 2 * workers.count

        def saw(waited_s: float, used_s: float) -> None:
            if isinstance(self.order, TrainOrder):
                workers.saw(waited_s, used_s, self._epoch * len(self) + self._position)

        return read_ahead_as(lambda: by_workers if workers.are_used else by_threads, groups, saw)

    def _made(
        self, epoch: int, workers: Workers | None, groups: Sequence[range]
    ) -> Iterator[Batches]:
        """Make batches one by one: decoded, transformed, verified, or from shards that move."""
        make = self.reader.read if workers is None else workers.maker(self.reader)
        for number in chain.from_iterable(groups):
            with self._ahead.reading(epoch, number) if self._ahead else nullcontext():
                indices = self.order.batch(epoch, number)
                made = deque([make(indices, self._seeds(epoch, number, len(indices)))])
            yield made  # the caller empties it: memory is reused once a batch is dropped

    def _seeds(self, epoch: int, number: int, share: int) -> list[int] | None:
        """Return a seed for each sample of a training batch: the same for any world size."""
        order = self.order
        if not isinstance(order, TrainOrder) or not self.reader.reading.transforms:
            return None
        first = number * order.batch_span + order.rank * share
        places = range(first, first + share)
        return [position_seed(order.seed, epoch, place, 0, "sample") for place in places]

    def _gathered(self, epoch: int, groups: Sequence[range]) -> Iterator[Batches]:
        """Gather the batches of each group, which share their memory.

        Addresses of samples are looked up for many groups at once; for the first group alone, so
        that it is ready at once.
        """
        order, gatherer, num_groups = self.order, self.reader.gatherer, 1
        while groups:
            coming, groups = groups[:num_groups], groups[num_groups:]
            parts = [[order.batch(epoch, number) for number in group] for group in coming]
            indices = np.concatenate([*chain.from_iterable(parts)])
            num_groups = max(_FOUND_SAMPLES * len(coming) // max(len(indices), 1), 1)
            if not groups:
                order.batch(epoch + 1, 0)  # so that the next epoch begins at once
            found, start = gatherer.find(self.reader.fixed, indices), 0
            for sizes in ([len(part) for part in group] for group in parts):
                yield _split(gatherer.take(found, start, start + sum(sizes)), sizes)
                start += sum(sizes)


def _split(whole: dict[str, Tensor], sizes: list[int]) -> Batches:
    """Return views of a group's memory, one batch each; one call per field is much faster."""
    if len(sizes) == 1:
        return deque([dict(whole)])
    columns = [values.split_with_sizes(sizes) for values in whole.values()]
    names = tuple(whole)
    return deque(dict(zip(names, values)) for values in zip(*columns))  # noqa: B905  no time
