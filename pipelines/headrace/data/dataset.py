"""A split as a map-style torch Dataset, for code that brings its own DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from headrace.data.decode import Decoder
from headrace.data.loader import read_batch
from headrace.shards.dataset import ShardedDataset


class SampleDataset(Dataset[dict[str, Tensor]]):
    """Samples of one split; works with any number of workers, forked or spawned.

    Args:
        folder: Folder of a dataset, packed or staged.
        split: Name of the split.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self._samples = ShardedDataset(folder, split)
        self._fields = tuple(info.name for info in self._samples.manifest.fields)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Several samples by one read a field; torch's DataLoader asks for whole batches."""
        wanted = np.asarray(indices, dtype=np.int64)
        batch = read_batch(self._samples, wanted, self._fields, Decoder())
        return [{name: values[i] for name, values in batch.items()} for i in range(len(wanted))]
