"""A split as a map-style torch Dataset, for code that brings its own DataLoader."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from headrace.data.reading import Reading, SampleReader
from headrace.data.samples import Sample, SampleTransform
from headrace.shards.dataset import ShardedDataset
from headrace.shards.places import ShardSource


class SampleDataset(Dataset[Sample]):
    """Samples of one split; works with any number of workers, forked or spawned.

    A sample is a dict of its fields: tensors, text as `str`, and `sample_id`.

    Args:
        folder: Folder of a dataset, packed or staged.
        split: Name of the split.
        fields: Names of the fields wanted; default is all.
        transforms: Callables `sample -> sample`, applied in order. One that has a parameter
            `generator` gets None: seed your own in the workers.
        source: Folder or S3 prefix of the dataset, for shards that are not in `folder`.

    Raises:
        ManifestError: No dataset there, or no such split or field.
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
        self.manifest = dataset.manifest
        self._reader = SampleReader(dataset, Reading(transforms=tuple(transforms)), fields)

    def __len__(self) -> int:
        return len(self._reader.dataset)

    def __getitem__(self, index: int) -> Sample:
        """One sample; negative indices count from the end.

        Raises:
            IndexError: There is no such sample.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Several samples by one read a field; torch's DataLoader asks for whole batches."""
        places = np.array([self._place(index) for index in indices], dtype=np.int64)
        return self._reader.samples(places)

    def _place(self, index: int) -> int:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            split = self._reader.dataset.split
            raise IndexError(f"Sample {place} of split '{split}', which has {len(self)}")
        return place % len(self)
