"""The global order of samples, cut into batches: the same for any number of ranks.

An epoch is an order of samples (`headrace.data.sampling`) cut into global batches; every rank
takes an equal, contiguous share of each. So all ranks do the same number of steps, and a position
in training is `(epoch, global index)`, valid for any number of ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from headrace.data.sampling import (
    Epochs,
    Indices,
    blocks,
    blocks_first,
    check_weights,
    class_weights,
    weight_field,
    weighted,
    whole,
)
from headrace.errors import UserError
from headrace.files.manifest import Manifest, ShardInfo
from headrace.recipe.dataset import TRAIN
from headrace.recipe.gang_size import check_global_batch
from headrace.recipe.recipe import DataSpec, Recipe

if TYPE_CHECKING:
    from headrace.shards.dataset import ShardedDataset  # importing h5py takes half a second

FIRST_WINDOW = 4
"""Shards that are shuffled together in epoch 0 if the others arrive while training runs."""


@dataclass(frozen=True, kw_only=True)
class TrainOrder:
    """Order of a training split for one rank."""

    num_samples: int
    """Samples per epoch."""
    seed: int
    global_batch_size: int
    """Samples per optimizer step over all ranks."""
    accumulate: int = 1
    """Batches per optimizer step."""
    rank: int = 0
    world_size: int = 1
    drop_last: bool = True
    """Leave out the last step if it is not full. Otherwise its last batch is cut to a multiple of
    the ranks, which leaves out at most `world_size - 1` samples of the epoch."""
    epochs: Epochs | None = None
    """Which samples an epoch takes; null: all of the split, by `shuffle`."""

    def __post_init__(self) -> None:
        check_global_batch(self.global_batch_size, self.world_size, self.accumulate)
        if self.num_batches == 0:
            raise UserError(
                f"The training split has {self.num_samples} samples, too few for one batch of "
                f"data.global_batch_size {self.global_batch_size} over {self.world_size} ranks",
                "Lower data.global_batch_size, or set data.drop_last to false.",
            )

    @property
    def num_batches(self) -> int:
        """Batches per epoch, the same for every rank."""
        if self.drop_last:
            return self.num_samples // self.global_batch_size * self.accumulate
        full, rest = divmod(self.num_samples, self.batch_span)
        return full + int(rest >= self.world_size)

    @property
    def batch_span(self) -> int:
        """Samples by which one batch moves the global index: those of a batch over all ranks."""
        return self.global_batch_size // self.accumulate

    @property
    def num_left_out(self) -> int:
        """Samples that an epoch leaves out, because they fill no batch for all ranks."""
        if self.drop_last:
            return self.num_samples % self.global_batch_size
        rest = self.num_samples % self.batch_span
        return rest if rest < self.world_size else rest % self.world_size

    def batch(self, epoch: int, number: int) -> Indices:
        """Return this rank's samples in a batch; all ranks get equally many."""
        size = self.batch_span
        with _ordering:
            order = _order(self._taken, epoch)
        batch = order[number * size : (number + 1) * size]
        share = len(batch) // self.world_size
        return batch[self.rank * share : (self.rank + 1) * share]

    @cached_property
    def _taken(self) -> Epochs:
        return self.epochs or whole(self.num_samples, self.seed)


@dataclass(frozen=True, kw_only=True)
class EachOnceOrder:
    """Every sample exactly once over all ranks, without repeats or gaps: for validation.

    Ranks hold contiguous parts of the split that differ by at most one sample, each cut into the
    same number of batches that differ by at most one sample. So metrics that add up sums and counts
    are exact, and all ranks have the same number of batches.
    """

    num_samples: int
    """Samples in the split."""
    global_batch_size: int
    """Samples per batch over all ranks, about; at most `world_size` more."""
    rank: int = 0
    world_size: int = 1

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
        """Samples by which one batch moves the global index."""
        return self.global_batch_size

    def batch(self, epoch: int, number: int) -> Indices:
        """Return this rank's samples in a batch; the same in every epoch."""
        del epoch
        start, stop = _part(0, self.num_samples, self.rank, self.world_size)
        first, last = _part(start, stop, number, self.num_batches)
        return np.arange(first, last, dtype=np.int64)


Order = TrainOrder | EachOnceOrder
"""Order of a loader: which samples make up which batch."""


def _part(start: int, stop: int, number: int, count: int) -> tuple[int, int]:
    size = stop - start
    return start + size * number // count, start + size * (number + 1) // count


_ordering = threading.Lock()  # so that threads that begin an epoch together compute one order


@lru_cache(maxsize=2)
def _order(epochs: Epochs, epoch: int) -> Indices:
    order = epochs.order(epoch)
    order.setflags(write=False)
    return order


def choose_epochs(
    dataset: ShardedDataset, spec: DataSpec, seed: int, overlap: bool = False
) -> Epochs:
    """Return the order of a training split; the same on all ranks and nodes.

    With `overlap`, epoch 0 may start before all shards are there. A `UserError` means that
    `data.sampling` names no field to draw by, or that it needs shards that are not on this node; a
    `DataError` that a weight is invalid.
    """
    if spec.sampling != "uniform":
        return _weighted(dataset, spec, seed)
    return _each_once(dataset.shards, spec, seed, overlap)


def _each_once(shards: Sequence[ShardInfo], spec: DataSpec, seed: int, overlap: bool) -> Epochs:
    sizes = tuple(shard.num_samples for shard in shards)
    if spec.shuffle_window is not None:
        return blocks(sizes, seed, spec.shuffle_window)
    if overlap and spec.shuffle:
        return blocks_first(sizes, seed, FIRST_WINDOW)
    return whole(sum(sizes), seed, spec.shuffle)


def needed_first(recipe: Recipe, manifest: Manifest) -> frozenset[str] | None:
    """Return the files of the first window's shards, which training waits for; None: all shards."""
    if not recipe.stage.overlap:
        return None
    spec = recipe.data
    shards = manifest.with_fold(spec.fold).shards_of(TRAIN)
    order = _each_once(shards, spec, recipe.seed, overlap=True).order(0)
    ends = np.cumsum([shard.num_samples for shard in shards])
    numbers, firsts = np.unique(ends.searchsorted(order, side="right"), return_index=True)
    window = (spec.shuffle_window or FIRST_WINDOW) if spec.shuffle else 1
    return frozenset(shards[number].file for number in numbers[np.argsort(firsts)][:window])


def _weighted(dataset: ShardedDataset, spec: DataSpec, seed: int) -> Epochs:
    if dataset.places.far:
        raise UserError(
            f"data.sampling '{spec.sampling}' draws from the whole split, but "
            f"{len(dataset.places.far)} of {len(dataset.shards)} shards are not on this node",
            "Stage the whole dataset, or write data.sampling: uniform and data.shuffle_window.",
        )
    name = weight_field(spec.sampling, dataset.manifest)
    values = dataset.gather(name, np.arange(len(dataset), dtype=np.int64))
    balanced = spec.sampling == "balanced"
    weights = class_weights(values) if balanced else check_weights(values, name)
    return weighted(weights, seed, spec.samples_per_epoch or len(dataset), f"'{spec.sampling}'")
