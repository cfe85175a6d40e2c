"""One `.npy` file per sample, read by torch's DataLoader: the baseline without packing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from headrace_bench.peers.peer import Epoch, Loader, Pair, PeerPart, PeerReading


class Samples(Dataset[tuple[NDArray[np.uint8], int]]):
    """Samples of files, by a function that reads one."""

    def __init__(
        self, paths: Sequence[Path], read: Callable[[Path], NDArray[np.uint8]] = np.load
    ) -> None:
        self._paths = paths
        self._read = read

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self._read(self._paths[index]), index


class Files(Loader):
    """torch DataLoader over files."""

    name = "DataLoader over files"
    module = "torch"
    settings = ".npy files, full shuffle"
    packs = False

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write samples as files."""
        for number, sample in part.items:
            np.save(folder / f"{number:08d}.npy", sample)

    def open(self, reading: PeerReading) -> Epoch:
        """Read files in any order."""
        return loader_of(Samples(sorted(reading.folder.glob("*.npy"))), reading)


def loader_of(samples: Dataset[tuple[NDArray[np.uint8], int]], reading: PeerReading) -> Epoch:
    """Return shuffled batches of a map-style dataset by torch's DataLoader."""
    loader: DataLoader[tuple[NDArray[np.uint8], int]] = DataLoader(
        samples,
        batch_size=reading.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=reading.num_workers,
    )

    def epoch() -> Iterator[Pair]:
        for batch, numbers in loader:
            yield _tensor(batch), _tensor(numbers)

    return epoch


def _tensor(values: object) -> Tensor:
    return torch.as_tensor(values)


PEER = Files()
