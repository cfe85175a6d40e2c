"""The global order of samples cut into batches: the same for any number of ranks.

An epoch is an order of samples (`headrace.data.sampling`) cut into global batches; every rank
takes an equal, contiguous share of each. So all ranks do the same number of steps, and a position
in training is `(epoch, global index)`, valid for any number of ranks.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from headrace.data.sampling import Epochs, Indices, Whole, epoch_order
from headrace.errors import UserError
from headrace.recipe.fit import check_global_batch

__all__ = [
    "EachOnceOrder",
    "Indices",
    "Order",
    "TrainOrder",
    "batch_share",
    "epoch_order",
    "num_train_batches",
]


def num_train_batches(
    num_samples: int, global_batch_size: int, world_size: int, drop_last: bool
) -> int:
    """Batches an epoch, the same for every rank.

    Args:
        num_samples: Samples in the split.
        global_batch_size: Samples a batch over all ranks, a multiple of `world_size`.
        world_size: Number of ranks.
        drop_last: Leave out the last batch when it is not full. Otherwise it is cut to a multiple
            of `world_size`, which leaves out at most `world_size - 1` samples of the epoch.
    """
    full, rest = divmod(num_samples, global_batch_size)
    return full + int(not drop_last and rest >= world_size)


def batch_share(
    order: Indices, batch: int, global_batch_size: int, rank: int, world_size: int
) -> Indices:
    """Samples of one rank in one global batch.

    Args:
        order: Order of the epoch, `(num_samples,) int64`.
        batch: Number of the batch in the epoch, from 0.
        global_batch_size: Samples a batch over all ranks, a multiple of `world_size`.
        rank: Rank, from 0.
        world_size: Number of ranks.

    Returns:
        `(share,) int64`; all ranks get equally many, fewer only in a last batch that is not full.
    """
    whole = order[batch * global_batch_size : (batch + 1) * global_batch_size]
    share = len(whole) // world_size
    return whole[rank * share : (rank + 1) * share]


class Order(Protocol):
    """What a loader follows: which samples make up which batch."""

    @property
    def num_batches(self) -> int:
        """Batches an epoch."""

    @property
    def batch_span(self) -> int:
        """Samples that one batch moves the global index by."""

    def batch(self, epoch: int, number: int) -> Indices:
        """Samples of a batch, `(share,) int64`."""


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """Order of a training split for one rank."""

    num_samples: int
    """Samples an epoch."""
    seed: int
    """Seed of the run."""
    global_batch_size: int
    """Samples a batch over all ranks."""
    rank: int = 0
    """Rank, from 0."""
    world_size: int = 1
    """Number of ranks."""
    shuffle: bool = True
    """Another order each epoch."""
    drop_last: bool = True
    """Leave out the last batch when it is not full."""
    epochs: Epochs | None = None
    """Which samples an epoch takes; null: all of the split, by `shuffle`."""

    def __post_init__(self) -> None:
        check_global_batch(self.global_batch_size, self.world_size)
        if self.num_batches == 0:
            raise UserError(
                f"The training split has {self.num_samples} samples, too few for one batch of "
                f"data.global_batch_size {self.global_batch_size} over {self.world_size} ranks",
                "Lower data.global_batch_size, or set data.drop_last to false.",
            )

    @property
    def num_batches(self) -> int:
        """Batches an epoch, the same for every rank."""
        return num_train_batches(
            self.num_samples, self.global_batch_size, self.world_size, self.drop_last
        )

    @property
    def batch_span(self) -> int:
        """Samples that one batch moves the global index by."""
        return self.global_batch_size

    @property
    def num_left_out(self) -> int:
        """Samples that an epoch leaves out, because they fill no batch that ranks can share."""
        rest = self.num_samples % self.global_batch_size
        return rest if self.drop_last or rest < self.world_size else rest % self.world_size

    @cached_property
    def taken(self) -> Epochs:
        """Which samples an epoch takes."""
        if self.epochs is not None:
            return self.epochs
        return Whole(num_samples=self.num_samples, seed=self.seed, shuffle=self.shuffle)

    def batch(self, epoch: int, number: int) -> Indices:
        """Samples of this rank in a batch, `(share,) int64`."""
        order = _cached_order(self.taken, epoch)
        return batch_share(order, number, self.global_batch_size, self.rank, self.world_size)


@dataclass(frozen=True, kw_only=True)
class EachOnceOrder:
    """Every sample exactly once over all ranks, none repeated or left out: for validation.

    Ranks hold contiguous parts of the split that differ by at most one sample, each cut into the
    same number of batches that differ by at most one sample. So metrics that add up sums and
    counts are exact, and no rank waits for a batch that another does not have.
    """

    num_samples: int
    """Samples in the split."""
    global_batch_size: int
    """Samples a batch over all ranks, about; never exceeded by more than `world_size`."""
    rank: int = 0
    """Rank, from 0."""
    world_size: int = 1
    """Number of ranks."""
    places: Indices | None = field(default=None, compare=False)
    """Places of the samples in the split, `(num_samples,) int64`; null: all, in order."""

    def __post_init__(self) -> None:
        if self.num_samples < self.world_size:
            raise UserError(
                f"The split has {self.num_samples} samples, fewer than {self.world_size} ranks",
                "Give it a larger share in dataset.splits, or train with fewer ranks.",
            )

    @property
    def num_batches(self) -> int:
        """Batches, the same for every rank; none is empty."""
        smallest, rest = divmod(self.num_samples, self.world_size)
        largest = smallest + bool(rest)
        share = max(self.global_batch_size // self.world_size, 1)
        return min(-(-largest // share), smallest)

    @property
    def batch_span(self) -> int:
        """Samples that one batch moves the global index by."""
        return self.global_batch_size

    def batch(self, epoch: int, number: int) -> Indices:
        """Samples of this rank in a batch, `(share,) int64`; the same in every epoch."""
        del epoch
        start, stop = _part(0, self.num_samples, self.rank, self.world_size)
        first, last = _part(start, stop, number, self.num_batches)
        if self.places is not None:
            return self.places[first:last]
        return np.arange(first, last, dtype=np.int64)


def _part(start: int, stop: int, number: int, count: int) -> tuple[int, int]:
    size = stop - start
    return start + size * number // count, start + size * (number + 1) // count


_ordering = threading.Lock()  # threads that begin an epoch together wait for the one order


def _cached_order(epochs: Epochs, epoch: int) -> Indices:
    with _ordering:
        return _order(epochs, epoch)


@lru_cache(maxsize=2)
def _order(epochs: Epochs, epoch: int) -> Indices:
    order = epochs.order(epoch)
    order.setflags(write=False)
    return order
