"""Shards to the nodes, and samples to batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, model_validator

from headrace.recipe.base import Name, Target
from headrace.record import Record

TRAIN = "train"
"""Split that is trained on; the one that `dataset.folds` cuts."""

VALIDATION = "val"
"""Split that is validated on while training, if there is one; with `data.fold`, that fold."""


def in_split_order(names: Iterable[str]) -> list[str]:
    """Names of splits in the one order that datasets keep them in: train, val, test, others."""
    known = {TRAIN: 0, VALIDATION: 1, "test": 2}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def packed_split(split: str, fold: int | None) -> str:
    """Split whose shards hold a split of `Manifest.with_fold`."""
    return TRAIN if split == VALIDATION and fold is not None else split


class StageSpec(Record):
    """How shards get to the nodes' own storage."""

    verify: bool = True
    """Compare the checksum of every shard while it is copied, and again while it is used."""
    splits: tuple[Name, ...] | None = None
    """Splits to stage; null stages all."""
    partial: bool = False
    """When no tier has room for all: stage what fits, read the rest from where the dataset lies."""
    peers: Literal["auto", "never"] = "auto"
    """`auto`: each shard is read once for all nodes of a gang, which pass it on; or `never`."""
    overlap: bool = False
    """Training starts when the first shards are in; the rest comes while it runs."""

    @model_validator(mode="after")
    def _check(self) -> StageSpec:
        if self.overlap and self.partial:
            raise ValueError("overlap stages the whole dataset: it goes without partial")
        return self


class DataSpec(Record):
    """How samples become batches."""

    global_batch_size: int = Field(default=128, ge=1)
    """Samples an optimizer step, over all ranks."""
    shuffle: bool = True
    """Shuffle the training split anew each epoch, by seed."""
    shuffle_window: int | None = Field(default=None, ge=1)
    """Shards that are shuffled together, for shared storage and S3; null: the whole split."""
    sampling: Name = "uniform"
    """`uniform`: each sample once an epoch; `balanced`: classes alike; or a field of weights."""
    samples_per_epoch: int | None = Field(default=None, ge=1)
    """Samples drawn an epoch when sampling is not uniform; null: as many as the split has."""
    fold: int | None = Field(default=None, ge=0)
    """Fold of `dataset.folds` to validate on, from 0; the others are trained on. Null: all are."""
    drop_last: bool = True
    """Leave out the last training batch when it is not full."""
    prefetch: int = Field(default=4, ge=0)
    """Batches that each rank reads ahead, by half as many threads; 0: read when asked for."""
    pad: float | None = None
    """Ragged arrays are filled up with this to the longest of the batch; null gives lists."""
    read_ahead: int | None = Field(default=None, ge=1)
    """Shards fetched ahead when they are not on the node; null: one window, at least 2."""
    verify_samples: bool = False
    """Compare the checksum of each sample that is read; reading is about ten times slower."""
    on_bad_shard: Literal["stop", "skip"] = "stop"
    """`skip`: check all shards at the start of a run, train without the damaged ones."""
    sample_transforms: tuple[Target, ...] = ()
    """Callables `sample -> sample` before batches are formed; `generator` is None in evaluation."""
    transforms: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied in order in training and evaluation."""
    augment: tuple[Target, ...] = ()
    """Callables `batch -> batch`, applied after `transforms` in training only."""

    @model_validator(mode="after")
    def _check(self) -> DataSpec:
        weighted = self.sampling != "uniform"
        if weighted and (self.shuffle_window is not None or not self.shuffle):
            raise ValueError(
                f"sampling '{self.sampling}' draws from the whole split: "
                "it goes with shuffle: true and without shuffle_window"
            )
        if self.samples_per_epoch is not None and not weighted:
            raise ValueError("samples_per_epoch goes with sampling balanced or by weights")
        if self.shuffle_window is not None and not self.shuffle:
            raise ValueError("shuffle_window goes with shuffle: true")
        if self.read_ahead is not None and self.read_ahead < (self.shuffle_window or 1):
            raise ValueError("read_ahead must be at least shuffle_window: batches span two windows")
        return self
