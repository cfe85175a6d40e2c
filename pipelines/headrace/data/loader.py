"""The loader: batches of an order, read ahead, with a position that can be saved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import partial

from headrace.data.ahead import read_ahead, read_ahead_while_it_pays
from headrace.data.batch import SAMPLE_ID, Batch
from headrace.data.batches import way_to_read
from headrace.data.order import Order
from headrace.data.payoff import Payoff
from headrace.data.reading import Reading, SampleReader
from headrace.data.streaming import ReadAhead
from headrace.errors import StepError
from headrace.shards.dataset import ShardedDataset


class BatchLoader:
    """Iterates over the batches of an order; what Lightning takes for a DataLoader.

    While a batch is worked on, threads read the next ones; no process is started. The position is
    counted in batches handed out, so reading ahead does not change it.

    Memory is that of `prefetch` batches (or groups of small ones), and of those that the caller
    keeps. One pass at a time: a pass that is given up ends with its iterator. Without `set_epoch`
    the next pass takes the same epoch again.

    Args:
        dataset: The split.
        order: Which samples make up which batch.
        fields: Names of the fields wanted; default is all.
        prefetch: Batches read ahead, by half as many threads; 0 reads a batch when it is asked
            for. Small ones are read several in one go (up to 8 MiB), and count as one. Copies out
            of memory are not made ahead as long as nobody works on the batches, see `Payoff`.
        reading: How samples become batches.
        num_epochs: Epochs there will be, so that no shard is fetched for one more; None when
            nobody knows.

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
        reading: Reading | None = None,
        num_epochs: int | None = None,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.wait_s = 0.0
        self.num_samples = 0
        self._prefetch = prefetch
        self._reader = SampleReader(dataset, reading, fields)
        self._ahead = ReadAhead(dataset, order, num_epochs) if dataset.places.far else None
        self._payoff = Payoff()
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
        """Position in training, valid for any world size.

        Returns:
            `epoch`, and `global_index`: samples of the epoch that all ranks together were handed,
            the batch that is worked on included.
        """
        return {"epoch": self._epoch, "global_index": self._position * self.order.batch_span}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position that `state_dict` gave, of this or another world size.

        The next pass begins there; one that is under way must have ended.

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
        way = way_to_read(self._reader, self.order, self._ahead)
        numbers, step = range(start, self.order.num_batches), way.num_together
        groups = [numbers[first : first + step] for first in range(0, len(numbers), step)]
        begin = partial(way.begin, epoch)
        if way.only_copies:
            return read_ahead_while_it_pays(begin, groups, self._prefetch, self._payoff)
        return read_ahead(begin, groups, self._prefetch)
