"""Seeded samples of random bytes, the same for every variant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SEED = 20_240_501
_CHANNELS = 3
_BATCH_BYTES = 12 * 2**20
_MIN_BATCH, _MAX_BATCH = 8, 512


@dataclass(frozen=True, kw_only=True)
class SampleShape:
    """Number and size of samples."""

    side: int
    """Height and width of a sample, `(side, side, 3) uint8`."""
    num_samples: int
    """A multiple of the batch."""
    batch_size: int

    @property
    def sample_shape(self) -> tuple[int, int, int]:
        """Shape of a sample."""
        return self.side, self.side, _CHANNELS

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample."""
        return self.side * self.side * _CHANNELS

    @property
    def num_bytes(self) -> int:
        """Bytes of all samples."""
        return self.num_samples * self.sample_bytes


def plan_shape(sample_bytes: int, total_bytes: int, max_samples: int = 32_768) -> SampleShape:
    """Return pictures of about `sample_bytes`, together about `total_bytes`, but not too many.

    Batches hold about 12 MiB, but at least 8 and at most 512 samples; there are at least two.
    """
    side = max(round((sample_bytes / _CHANNELS) ** 0.5), 2)
    size = side * side * _CHANNELS
    count = min(max(total_bytes // size, 2), max_samples)
    batch = 2 ** round(np.log2(min(max(_BATCH_BYTES / size, _MIN_BATCH), _MAX_BATCH)))
    batch = int(min(batch, count // 2))
    return SampleShape(side=side, num_samples=count // batch * batch, batch_size=batch)


def random_samples(shape: SampleShape) -> NDArray[np.uint8]:
    """Return samples of random bytes, `(num_samples, side, side, 3) uint8`; always the same."""
    random = np.random.Generator(np.random.SFC64(_SEED))
    words = random.integers(0, 2**64, size=-(-shape.num_bytes // 8), dtype=np.uint64)
    flat = words.view(np.uint8)[: shape.num_bytes]
    return flat.reshape(shape.num_samples, *shape.sample_shape)


def room_for_files(shape: SampleShape) -> int:
    """Return the bytes that `write_files` takes, with two copies of the samples."""
    return 3 * shape.num_bytes + 2 * 4096 * shape.num_samples


def write_files(samples: NDArray[np.uint8], folder: Path, num_classes: int = 10) -> list[Path]:
    """Write samples `(num_samples, …)` as `.npy` files into class folders `c0`, `c1`, …."""
    for number in range(num_classes):
        (folder / f"c{number}").mkdir(parents=True, exist_ok=True)
    paths = [folder / f"c{i % num_classes}" / f"{i:08d}.npy" for i in range(len(samples))]
    for path, sample in zip(paths, samples, strict=True):
        np.save(path, sample)
    return paths
