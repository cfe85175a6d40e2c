"""HDF5 as it is mostly used: h5py, one read per sample."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Dataset

from headrace_bench.peers.files import loader_of
from headrace_bench.peers.peer import Epoch, Loader, PeerPart, PeerReading


class H5pySamples(Dataset[tuple[NDArray[np.uint8], int]]):
    """Samples of a file and their numbers, by the names of both arrays."""

    def __init__(self, path: Path, sample: str = "sample", number: str = "number") -> None:
        self._path, self._sample, self._number = path, sample, number
        self._file: h5py.File | None = None
        with h5py.File(path, "r", locking=False) as file:
            self._num_samples = len(file[number])

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        if self._file is None:  # each worker process opens the file by itself
            self._file = h5py.File(self._path, "r", locking=False)
        return self._file[self._sample][index], int(self._file[self._number][index])


class NaiveH5py(Loader):
    """One HDF5 file, written and read sample by sample."""

    name = "h5py, a read a sample"
    module = "h5py"
    settings = "contiguous, torch DataLoader, full shuffle"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write one file, sample by sample."""
        with h5py.File(folder / f"{part.number}.h5", "w") as file:
            samples = file.create_dataset(
                "sample", (part.num_samples, *part.sample_shape), dtype="uint8"
            )
            numbers = file.create_dataset("number", (part.num_samples,), dtype="int64")
            for place, (number, sample) in enumerate(part.items):
                samples[place] = sample
                numbers[place] = number

    def open(self, reading: PeerReading) -> Epoch:
        """Read all files."""
        files = sorted(reading.folder.glob("*.h5"))
        return loader_of(ConcatDataset([H5pySamples(path) for path in files]), reading)


PEER = NaiveH5py()
