"""A split as samples and batches: for headrace's loader, or as a torch `Dataset`.

The recipe's `data.dataset` is a user's own `Dataset` over a split.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from headrace.data.decode import Decoder, Lend
from headrace.data.device_decode import DeviceDecoder
from headrace.data.gather import Gatherer
from headrace.data.instantiate import Allowed, instantiate, instantiate_all
from headrace.data.sampling import Indices, check_cropped
from headrace.data.transforms import (
    SAMPLE_ID,
    Batch,
    Collate,
    RandomResizedCrop,
    Sample,
    SampleChain,
    SampleTransform,
    collate,
    collated,
    columns_of,
    varies,
)
from headrace.errors import DataError, UserError, blaming_user_code
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset, check_samples
from headrace.shards.shard_locations import ShardSource

_OWN_HINT = (
    "data.dataset names a class that gets the samples of a split, as a SampleDataset. It needs "
    "__len__, and __getitem__(number), which returns a dict and is called by several threads."
)


class OwnSamples:
    """Items that the user's `Dataset` makes of a split, numbered from 0.

    `name` is that of the class, `make`. With `verify`, each packed sample is compared with its
    checksum.

    Raises:
        UserCodeError: The user's code raised.
        DataError: There are no items.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Sequence[Sample]], Any],
        dataset: ShardedDataset,
        verify: bool,
    ) -> None:
        self._name, self._dataset = name, dataset
        samples: Any = SplitSamples(SampleReader(dataset, Reading(verify=verify)))
        with blaming_user_code(name, _OWN_HINT, f"split '{dataset.split}'"):
            self._made = make(samples)
        with blaming_user_code(f"{name}.__len__", _OWN_HINT):
            self._len = operator.index(len(self._made))
        if self._len == 0:
            raise DataError(f"{name} has no samples of split '{dataset.split}'", _OWN_HINT)

    def __len__(self) -> int:
        return self._len

    @property
    def is_as_long(self) -> bool:
        """Whether there are as many items as samples in the split."""
        return self._len == len(self._dataset)

    def samples(self, indices: Indices) -> list[Sample]:
        """Return items, `indices (n,) int64`; those without a `sample_id` get one.

        It is that of the split's sample of the same number, if there are as many items as samples;
        else the number of the item.

        Raises:
            UserCodeError: The user's code raised, or did not return a dict.
        """
        ids = self._dataset.gather(SAMPLE_ID, indices) if self.is_as_long else indices
        both = zip(indices.tolist(), ids.tolist(), strict=True)
        return [{SAMPLE_ID: torch.tensor(number), **self._item(index)} for index, number in both]

    def _item(self, index: int) -> Sample:
        where = f"item {index} of split '{self._dataset.split}'"
        with blaming_user_code(f"{self._name}.__getitem__", _OWN_HINT, where):
            item = self._made[index]
            if not isinstance(item, dict):
                raise TypeError(f"it returned a {type(item).__name__}, not a dict")
        return item


class OwnDataset:
    """Makes the user's `Dataset` of a split, once for each split in use, see `OwnSamples`."""

    def __init__(self, name: str, make: Callable[[Sequence[Sample]], Any]) -> None:
        self.over = cache(partial(OwnSamples, name, make))


def check_each_once(own: OwnSamples | None, dataset: ShardedDataset) -> None:
    """Raise if the items to evaluate are not one for each sample of the split."""
    if own is not None and not own.is_as_long:
        raise UserError(
            f"data.dataset makes {len(own)} items of the {len(dataset)} samples of split "
            f"'{dataset.split}', and evaluation takes each sample exactly once",
            "Let it make one item per sample, or set evaluate: null.",
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How samples become batches."""

    pad: float | None = None
    """Pads arrays of varying length; None gives lists."""
    transforms: tuple[SampleTransform, ...] = ()
    """Applied to each sample before batches are formed."""
    verify: bool = False
    """Compare each sample with its checksum."""
    collate: Collate | None = None
    """Forms batches instead of stacking and `pad`."""
    own: OwnDataset | None = None
    """Makes the user's samples from packed ones, before `transforms`."""
    decoder: Decoder = field(default_factory=Decoder, compare=False)

    @property
    def is_special(self) -> bool:
        """Whether anything differs from plain batches."""
        return self != Reading()

    @property
    def is_per_sample(self) -> bool:
        """Whether Python of the user makes each sample or batch, so that worker processes help."""
        of_users = [each for each in self.transforms if not isinstance(each, RandomResizedCrop)]
        return bool(of_users or self.collate or self.own)


def reading_of(spec: DataSpec, allowed: Allowed) -> Reading:
    """Return how a recipe's samples are read, the same in training and evaluation."""
    transforms = instantiate_all(spec.sample_transforms, allowed, "data.sample_transforms")
    collate = own = None
    if spec.collate is not None:
        collate = instantiate(spec.collate, allowed, "data.collate")
    if spec.dataset is not None:
        make = instantiate(spec.dataset, allowed, "data.dataset", partial=True)
        own = OwnDataset(spec.dataset.target, make)
    return Reading(
        pad=spec.pad,
        transforms=transforms,
        verify=spec.verify_samples,
        collate=collate,
        own=own,
        decoder=DeviceDecoder() if spec.decode == "gpu" else Decoder(),
    )


class SampleReader:
    """Reads samples and batches of a split; `fields` are the wanted ones, by default all.

    `gatherer` gathers the fields of fixed shape `fixed`, with `sample_id`; others are `ragged`.
    `own` are samples that a user's `Dataset` makes; then `indices` count these.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        reading: Reading | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.dataset = dataset
        self.reading = reading or Reading()
        for name in fields or ():
            dataset.field(name)
        infos = [i for i in dataset.manifest.fields if fields is None or i.name in fields]
        self.fixed = [info for info in infos if info.layout == "fixed"]
        self.fixed.append(dataset.field(SAMPLE_ID))
        self.ragged = [info for info in infos if info.layout == "ragged"]
        self.gatherer = Gatherer(dataset)
        given = () if self.reading.own else self.reading.transforms
        self._crops = {each.field: each for each in given if isinstance(each, RandomResizedCrop)}
        for name in self._crops:
            check_cropped(name, dataset.manifest)
        self._others = self.reading.transforms[len(self._crops) :]  # a crop among them raises
        self._chain = SampleChain(self._others)
        self._varying = {info.name for info in self.ragged if varies(info)}
        self.own: OwnSamples | None = None
        if self.reading.own is not None:
            self.own = self.reading.own.over(dataset, self.reading.verify)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset if self.own is None else self.own)

    def read(self, indices: Indices, seeds: Sequence[int] | None = None) -> Batch:
        """Return a batch of samples, `indices (batch,) int64` of the split.

        `seeds` are for the transforms of each sample; None if nothing should be random.

        Raises:
            DataError: Samples cannot be decoded, or differ where they must not.
            ShardError: Samples are damaged.
            UserCodeError: A transform or `collate` raised.
        """
        if self.reading.collate is not None:
            return collated(self.reading.collate, self.samples(indices, seeds))
        pad, is_plain = self.reading.pad, not self._others and self.own is None
        if is_plain:
            columns = self._columns(indices, seeds, self.gatherer.buffers.lend)
        else:
            columns = columns_of(self.samples(indices, seeds))
        batch: Batch = {}
        sources = partial(self.dataset.sources, indices)
        for name, column in columns.items():
            differs = name in self._varying
            if isinstance(column, Tensor) or (is_plain and differs and pad is None):
                batch[name] = column
            else:
                fill = pad if differs else None
                batch |= collate(name, column, sources, pad=fill)
        return batch

    def samples(self, indices: Indices, seeds: Sequence[int] | None = None) -> list[Sample]:
        """Return single samples, transformed; arguments and errors as `read`."""
        if self.own is not None:
            samples = self.own.samples(indices)
        else:
            columns = self._columns(indices, seeds)
            samples = [{name: columns[name][at] for name in columns} for at in range(len(indices))]
        if not self._others:
            return samples
        each = [None] * len(samples) if seeds is None else list(seeds)
        return [self._chain(sample, seed) for sample, seed in zip(samples, each, strict=True)]

    def _columns(
        self, indices: Indices, seeds: Sequence[int] | None, lend: Lend | None = None
    ) -> Batch:
        """Gather and decode packed samples: a tensor per field, or a list of tensors or texts."""
        with self.dataset.holding(indices):
            if self.reading.verify:
                check_samples(self.dataset, indices)
            held = [info for info in self.ragged if info.name in self.gatherer.held]
            columns: Batch = dict(self.gatherer.gather([*self.fixed, *held], indices))
            for info in (info for info in self.ragged if info not in held):
                crop = self._crops.get(info.name)
                part = None if crop is None else partial(crop.decode, seeds)
                items = self.reading.decoder.decode(self.dataset, info, indices, lend, part)
                columns[info.name] = items if isinstance(items, Tensor) else [*map(_tensor, items)]
        return columns


def _tensor(item: Any) -> Any:
    return item if isinstance(item, str) else torch.as_tensor(item)


class SplitSamples(Dataset[Sample]):
    """Samples of a reader, one by one or several."""

    def __init__(self, reader: SampleReader) -> None:
        self.manifest = reader.dataset.manifest
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; negative indices count from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return several samples by one read per field; torch's DataLoader requests batches."""
        places = np.array([self._place(index) for index in indices], dtype=np.int64)
        return self._reader.samples(places)

    def _place(self, index: int) -> int:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            split = self._reader.dataset.split
            raise IndexError(f"Sample {place} of split '{split}', which has {len(self)}")
        return place % len(self)


class SampleDataset(SplitSamples):
    """Samples of one split; works with any number of workers, forked or spawned.

    A sample is a dict of its fields: tensors, text as `str`, and `sample_id`.

    Args:
        folder: Folder of a dataset, packed or staged.
        split: Name of the split.
        fields: Names of the wanted fields; default: all.
        transforms: Callables `sample -> sample`, applied in order. A transform with a parameter
            `generator` gets None: seed your own generator in the workers.
        source: Folder or S3 prefix of the dataset, for shards that are not in `folder`.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str,
        fields: Sequence[str] | None = None,
        transforms: Sequence[SampleTransform] = (),
        source: str | None = None,
    ) -> None:
        places = None if source is None else ShardSource.at(source)
        dataset = ShardedDataset(Path(folder), split, places)
        super().__init__(SampleReader(dataset, Reading(transforms=tuple(transforms)), fields))
