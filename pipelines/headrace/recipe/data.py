"""Shards to the nodes, and samples to batches."""

from __future__ import annotations

from pydantic import Field

from headrace.recipe.base import Name, Part, Target


class StageSpec(Part):
    """How shards get to the nodes' own storage."""

    verify: bool = True
    """Compare the checksum of every shard while it is copied."""
    splits: tuple[Name, ...] | None = None
    """Splits to stage; null stages all."""


class DataSpec(Part):
    """How samples become batches."""

    global_batch_size: int = Field(default=128, ge=1)
    """Samples an optimizer step, over all ranks."""
    shuffle: bool = True
    """Shuffle the training split anew each epoch, by seed."""
    drop_last: bool = True
    """Leave out the last training batch when it is not full."""
    transforms: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied in order in training and evaluation."""
    augment: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied after `transforms` in training only."""
