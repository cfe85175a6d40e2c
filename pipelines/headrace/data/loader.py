"""The loader: batches of an order, read ahead, with a position that can be saved."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial

import numpy as np
from torch import Tensor

from headrace.data.ahead import Payoff, read_ahead, read_ahead_as, read_ahead_while_it_pays
from headrace.data.dataset import Reading, SampleReader
from headrace.data.gather import Located
from headrace.data.order import Order, TrainOrder
from headrace.data.sampling import position_seed
from headrace.data.streaming import ReadAhead
from headrace.data.transforms import SAMPLE_ID, Batch
from headrace.data.workers import Make, Workers
from headrace.errors import StepError
from headrace.shards.dataset import ShardedDataset

_TOGETHER_BYTES = 8 * 2**20
_MAX_TOGETHER = 16
_FOUND_SAMPLES = 2**14  # looked up at once: their addresses stay in the processor's cache

ReadGroup = Callable[[range], deque[Batch]]
"""Reads the batches of these numbers; used by one thread."""


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

    def _read_groups(self, epoch: int, start: int) -> Generator[deque[Batch], None, None]:
        way = _way_to_read(self.reader, self.order, self._ahead)
        numbers, step = range(start, self.order.num_batches), way.num_together
        groups = [numbers[first : first + step] for first in range(0, len(numbers), step)]
        begin = partial(way.begin, epoch)
        if way.only_copies:
            return read_ahead_while_it_pays(begin, groups, self._prefetch, self._payoff)
        if self.workers is None:
            return read_ahead(begin, groups, self._prefetch)
        return self._read_by(self.workers, begin, groups)

    def _read_by(
        self, workers: Workers, begin: Callable[..., ReadGroup], groups: Sequence[range]
    ) -> Generator[deque[Batch], None, None]:
        """Read groups of one batch by threads or processes, as `workers` says."""
        by_threads = begin, self._prefetch
        by_workers = partial(begin, workers=workers), 2 * workers.count

        def saw(waited_s: float, used_s: float) -> None:
            if isinstance(self.order, TrainOrder):
                workers.saw(waited_s, used_s, self._epoch * len(self) + self._position)

        return read_ahead_as(lambda: by_workers if workers.are_used else by_threads, groups, saw)


def _way_to_read(
    reader: SampleReader, order: Order, ahead: ReadAhead | None
) -> _OneByOne | _InGroups:
    """Return how batches are read from now on; it may change once all shards are there."""
    if not reader.ragged and not reader.reading.is_special and reader.dataset.places.is_whole:
        return _InGroups(reader, order)
    return _OneByOne(reader, order, ahead)


class _OneByOne:
    """Reads each batch separately: decoded, transformed, verified, or from shards that move.

    Samples of a `TrainOrder` get random numbers that depend only on seed, epoch and position in the
    global order, not on the world size.
    """

    num_together = 1
    only_copies = False

    def __init__(self, reader: SampleReader, order: Order, ahead: ReadAhead | None) -> None:
        self.reader = reader
        self._order = order
        self._ahead = ahead

    def begin(
        self, epoch: int, groups: Sequence[range], workers: Workers | None = None
    ) -> ReadGroup:
        del groups
        make = self.reader.read if workers is None else workers.maker(self.reader)
        return lambda group: deque(self._read(make, epoch, number) for number in group)

    def _read(self, make: Make, epoch: int, number: int) -> Batch:
        with self._ahead.reading(epoch, number) if self._ahead is not None else nullcontext():
            indices = self._order.batch(epoch, number)
            return make(indices, self._seeds(epoch, number, len(indices)))

    def _seeds(self, epoch: int, number: int, share: int) -> list[int] | None:
        order = self._order
        if not isinstance(order, TrainOrder) or not self.reader.reading.transforms:
            return None
        first = number * order.batch_span + order.rank * share
        places = range(first, first + share)
        return [position_seed(order.seed, epoch, place, 0, "sample") for place in places]


class _InGroups:
    """Reads several small batches at once (up to 8 MiB), if all fields are of fixed shape.

    All shards of the split are mapped.
    """

    def __init__(self, reader: SampleReader, order: Order) -> None:
        self.gatherer = reader.gatherer
        self.order = order
        self.infos = reader.fixed
        fields = [info for info in reader.fixed if info.name != SAMPLE_ID]
        sample_bytes = sum(math.prod(f.shape) * np.dtype(f.dtype).itemsize for f in fields)
        batch_bytes = max(sample_bytes * order.batch_span, 1)
        self.num_together = max(min(_TOGETHER_BYTES // batch_bytes, _MAX_TOGETHER), 1)
        self.only_copies = all(info.codec == "none" for info in fields)

    def begin(self, epoch: int, groups: Sequence[range]) -> ReadGroup:
        return _Groups(self, epoch, groups)


class _Groups:
    """Reads groups one after another; addresses of samples are looked up for many groups at once.

    For the first group they are looked up alone, so that it is ready at once. Batches of a group
    share their memory.
    """

    def __init__(self, way: _InGroups, epoch: int, groups: Sequence[range]) -> None:
        self._way = way
        self._epoch = epoch
        self._left = groups
        self._found: dict[range, tuple[Located, int, list[int]]] = {}
        self._num_found = 1

    def __call__(self, group: range) -> deque[Batch]:
        if group not in self._found:
            self._find()
        found, start, sizes = self._found.pop(group)
        return _split(self._way.gatherer.take(found, start, start + sum(sizes)), sizes)

    def _find(self) -> None:
        order = self._way.order
        groups, self._left = self._left[: self._num_found], self._left[self._num_found :]
        parts = [[order.batch(self._epoch, number) for number in group] for group in groups]
        indices = np.concatenate([part for its_parts in parts for part in its_parts])
        self._num_found = max(_FOUND_SAMPLES * len(groups) // max(len(indices), 1), 1)
        if not self._left:
            order.batch(self._epoch + 1, 0)  # so that the next epoch begins at once
        found = self._way.gatherer.find(self._way.infos, indices)
        start = 0
        for group, its_parts in zip(groups, parts, strict=True):
            sizes = [len(part) for part in its_parts]
            self._found[group] = found, start, sizes
            start += sum(sizes)


def _split(whole: dict[str, Tensor], sizes: list[int]) -> deque[Batch]:
    """Return views of a group's memory, one batch each; one call per field is much faster."""
    if len(sizes) == 1:
        return deque([dict(whole)])
    columns = [values.split_with_sizes(sizes) for values in whole.values()]
    names = tuple(whole)
    return deque(dict(zip(names, values)) for values in zip(*columns))  # noqa: B905  no time
