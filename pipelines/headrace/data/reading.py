"""Reads samples of a split as recipes ask for: single, transformed one by one, or as batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from headrace.data.batch import Batch, gather_batch
from headrace.data.collate import collate, varies
from headrace.data.decode import Decoder
from headrace.data.gather import Gatherer
from headrace.data.order import Indices
from headrace.data.samples import Sample, SampleChain, SampleTransform
from headrace.data.targets import Allowed, instantiate_all
from headrace.errors import DataError
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset, check_samples
from headrace.storage.manifest import FieldInfo


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How samples become batches."""

    pad: float | None = None
    """Fills up arrays of varying length; None gives lists."""
    transforms: tuple[SampleTransform, ...] = ()
    """Applied to each sample before batches are formed."""
    verify: bool = False
    """Compare each sample with its checksum."""

    @property
    def is_special(self) -> bool:
        """Whether anything differs from reading batches as they are."""
        return self != Reading()


def reading_of(spec: DataSpec, allowed: Allowed) -> Reading:
    """How a recipe wants samples to be read, the same in training and evaluation.

    Raises:
        TargetError: A sample transform may not be named, or does not exist.
    """
    transforms = instantiate_all(spec.sample_transforms, allowed, "data.sample_transforms")
    return Reading(pad=spec.pad, transforms=transforms, verify=spec.verify_samples)


class SampleReader:
    """Reads samples and batches of a split.

    Args:
        dataset: The split.
        reading: How.
        fields: Names of the fields wanted; default is all.

    Attributes:
        dataset: The split.
        reading: How.
        gatherer: Gathers fields of fixed shape.

    Raises:
        ManifestError: There is no such field.
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
        self._infos = {
            info.name: info
            for info in dataset.manifest.fields
            if fields is None or info.name in fields
        }
        self._decoder = Decoder()
        self.gatherer = Gatherer(dataset)
        self._chain = SampleChain(self.reading.transforms)

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The fields wanted."""
        return tuple(self._infos.values())

    def read(self, indices: Indices, seeds: Sequence[int] | None = None) -> Batch:
        """A batch of samples.

        Args:
            indices: Places in the split, `(batch,) int64`.
            seeds: Seed of each sample's transforms; None when nothing should be random.

        Raises:
            DataError: Samples cannot be decoded, or differ where they must not.
            ShardError: Samples are damaged.
            UserCodeError: A transform raised.
        """
        if self.reading.transforms:
            return self._join(self.samples(indices, seeds), indices)
        with self.dataset.holding(indices):
            self._verify(indices)
            return gather_batch(
                self.gatherer, indices, tuple(self._infos), self._decoder, self.reading.pad
            )

    def samples(self, indices: Indices, seeds: Sequence[int] | None = None) -> list[Sample]:
        """Single samples, transformed; arguments and errors as `read`."""
        with self.dataset.holding(indices):
            self._verify(indices)
            columns = self._columns(indices)
        samples = [
            {name: column[number] for name, column in columns.items()}
            for number in range(len(indices))
        ]
        if not self.reading.transforms:
            return samples
        each = [None] * len(samples) if seeds is None else list(seeds)
        return [self._chain(sample, seed) for sample, seed in zip(samples, each, strict=True)]

    def _verify(self, indices: Indices) -> None:
        if self.reading.verify:
            check_samples(self.dataset, indices)

    def _columns(self, indices: Indices) -> Batch:
        """Values of each sample by field, not yet of one shape."""
        fixed = [name for name, info in self._infos.items() if info.layout == "fixed"]
        columns = gather_batch(self.gatherer, indices, fixed, self._decoder)
        for name, info in self._infos.items():
            if info.layout != "fixed":
                items = self._decoder.decode(self.dataset, info, indices)
                columns[name] = [
                    item if isinstance(item, str) else torch.as_tensor(item) for item in items
                ]
        return columns

    def _join(self, samples: Sequence[Sample], indices: Indices) -> Batch:
        """Form a batch; arrays of varying length are filled up, or must agree."""
        batch: Batch = {}
        for name in samples[0] if samples else ():
            if any(name not in sample for sample in samples):
                raise DataError(
                    f"Samples of one batch differ in fields: only some have '{name}'",
                    "data.sample_transforms must give every sample the same fields.",
                )
            info = self._infos.get(name)
            varying = self.reading.pad is not None and info is not None and varies(info)
            items = [sample[name] for sample in samples]
            sources = partial(self.dataset.sources, indices)
            batch |= collate(name, items, sources, varying=varying, pad=self.reading.pad)
        return batch
