"""Which samples an epoch takes, as a recipe asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.data.sampling import (
    Blocks,
    BlocksFirst,
    Epochs,
    Weighted,
    Whole,
    check_weights,
    class_weights,
    weight_field,
)
from headrace.errors import UserError
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace.storage.manifest import Manifest, ShardInfo

FIRST_WINDOW = 4
"""Shards that are shuffled together in epoch 0 when the others come while training runs."""


def choose_epochs(
    dataset: ShardedDataset, spec: DataSpec, seed: int, overlap: bool = False
) -> Epochs:
    """The order of a training split; the same on all ranks and nodes.

    Args:
        dataset: The split.
        spec: The recipe's `data`.
        seed: Seed of the run.
        overlap: Whether epoch 0 may start before all shards are there.

    Raises:
        UserError: `data.sampling` names no field that samples can be drawn by, or goes with
            shards that are not on this node.
        DataError: A weight is none.
    """
    if spec.sampling != "uniform":
        return _weighted(dataset, spec, seed)
    return each_once(dataset.shards, spec, seed, overlap)


def each_once(shards: Sequence[ShardInfo], spec: DataSpec, seed: int, overlap: bool) -> Epochs:
    """The order when an epoch takes each sample once; arguments as for `choose_epochs`.

    Args:
        shards: Shards of the split.
        spec: The recipe's `data`.
        seed: Seed of the run.
        overlap: Whether epoch 0 may start before all shards are there.
    """
    sizes = tuple(shard.num_samples for shard in shards)
    if spec.shuffle_window is not None:
        return Blocks(shard_samples=sizes, seed=seed, window=spec.shuffle_window)
    whole = Whole(num_samples=sum(sizes), seed=seed, shuffle=spec.shuffle)
    if not overlap or not spec.shuffle:
        return whole
    first = Blocks(shard_samples=sizes, seed=seed, window=FIRST_WINDOW)
    return BlocksFirst(first=first, later=whole)


def by_first_use(
    manifest: Manifest, split: str, spec: DataSpec, seed: int
) -> tuple[tuple[str, ...], int]:
    """Files of the shards in the order in which a training that overlaps staging needs them.

    Args:
        manifest: The dataset.
        split: Split that is trained on; shards of other splits follow.
        spec: The recipe's `data`.
        seed: Seed of the run.

    Returns:
        The files, and how many of them the first batches need: those of one window.
    """
    manifest = manifest.with_fold(spec.fold)
    shards = manifest.shards_of(split)
    order = each_once(shards, spec, seed, overlap=True).order(0)
    ends = np.cumsum([shard.num_samples for shard in shards])
    numbers, firsts = np.unique(ends.searchsorted(order, side="right"), return_index=True)
    used = [shards[number].file for number in numbers[np.argsort(firsts)].tolist()]
    others = [shard.file for shard in manifest.shards if shard.file not in set(used)]
    window = (spec.shuffle_window or FIRST_WINDOW) if spec.shuffle else 1
    return (*used, *others), min(window, len(used))


def _weighted(dataset: ShardedDataset, spec: DataSpec, seed: int) -> Weighted:
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
    return Weighted(
        weights=weights,
        seed=seed,
        num_samples=spec.samples_per_epoch or len(dataset),
        name=f"'{spec.sampling}'",
    )
