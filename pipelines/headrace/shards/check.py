"""Compares samples with the checksums that they were packed with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import ShardError
from headrace.shards.dataset import ShardedDataset
from headrace.shards.format import MEND
from headrace.storage.manifest import FieldInfo


def check_samples(dataset: ShardedDataset, indices: NDArray[np.int64]) -> None:
    """Make sure that samples are what was packed, byte for byte; call it inside `holding`.

    Args:
        dataset: The split.
        indices: Places in the split, `(n,) int64`.

    Raises:
        ShardError: Samples are damaged, or their shard has no checksums; names shard and samples.
    """
    stored = dataset.checksums(indices)
    found = sample_checksums([_bytes(dataset, f, indices) for f in dataset.manifest.fields])
    damaged = np.sort(indices[found != stored])
    if len(damaged):
        shards = dataset.shards_with(damaged)
        files = ", ".join(dataset.shards[number].file for number in shards)
        raise ShardError(
            f"Damaged samples ({len(damaged):,}) of split '{dataset.split}' between "
            f"{damaged[0]:,} and {damaged[-1]:,}, in {files} of {dataset.folder}; the first is "
            f"{dataset.sources(damaged[:1])[0]}",
            MEND,
        )


def sample_checksums(fields: Sequence[Sequence[NDArray[np.uint8]]]) -> NDArray[np.uint64]:
    """Checksum of each sample, `(num_samples,) uint64`: XXH3 of the bytes of its fields in order.

    Args:
        fields: By field in the manifest's order, the bytes of each sample.
    """
    found = []
    for sample in zip(*fields, strict=True):
        state = xxhash.xxh3_64()
        for content in sample:
            state.update(content)
        found.append(state.intdigest())
    return np.array(found, dtype=np.uint64)


def _bytes(
    dataset: ShardedDataset, info: FieldInfo, indices: NDArray[np.int64]
) -> Sequence[NDArray[np.uint8]]:
    if info.layout == "ragged":
        return dataset.items(info.name, indices)
    values = dataset.gather(info.name, indices)
    rows: NDArray[np.uint8] = values.reshape(len(values), -1).view(np.uint8)
    return list(rows)
