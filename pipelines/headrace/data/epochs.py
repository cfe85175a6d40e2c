"""Which samples an epoch takes, as a recipe asks for."""

from __future__ import annotations

import numpy as np

from headrace.data.sampling import (
    Blocks,
    Epochs,
    Weighted,
    Whole,
    check_weights,
    class_weights,
    weight_field,
)
from headrace.errors import UserError
from headrace.recipe.data import DataSpec
from headrace.shards.dataset import ShardedDataset


def choose_epochs(dataset: ShardedDataset, spec: DataSpec, seed: int) -> Epochs:
    """The order of a training split; the same on all ranks and nodes.

    Args:
        dataset: The split.
        spec: The recipe's `data`.
        seed: Seed of the run.

    Raises:
        UserError: `data.sampling` names no field that samples can be drawn by, or goes with
            shards that are not on this node.
        DataError: A weight is none.
    """
    if spec.sampling != "uniform":
        return _weighted(dataset, spec, seed)
    if spec.shuffle_window is not None:
        sizes = tuple(shard.num_samples for shard in dataset.shards)
        return Blocks(shard_samples=sizes, seed=seed, window=spec.shuffle_window)
    return Whole(num_samples=len(dataset), seed=seed, shuffle=spec.shuffle)


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
