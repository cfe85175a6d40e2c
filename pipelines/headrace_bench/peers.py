"""Peers: other ways to write and read samples; here those of torch and h5py.

Other libraries are added in a checkout, by `tests/benchmarks/peers.py`.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from headrace_bench.machine import num_cores
from headrace_bench.samples import SampleShape

Pair = tuple[Tensor, Tensor]
"""A batch: samples `(batch, side, side, 3) uint8` and their numbers `(batch,) int64`."""

Epoch = Callable[[], Iterator[Pair]]
"""Begins a pass over all samples, shuffled."""

Numbered = Dataset[tuple[NDArray[np.uint8], int]]
"""A map-style dataset of samples with their numbers."""


@dataclass(frozen=True, kw_only=True)
class PeerPart:
    """Samples written by one process."""

    number: int
    """Number of the part, from 0."""
    num_samples: int
    sample_shape: tuple[int, ...]
    items: Iterable[tuple[int, NDArray[np.uint8]]]
    """Number and content of each sample."""


class Loader(ABC):
    """One library; an instance has no state, as other processes get a copy."""

    name: str
    module: str
    """Module that must be installed."""
    package: str = ""
    """Distribution, if its name differs from the module's."""
    extra: str = "bench"
    """Optional dependencies of headrace that install it."""
    settings: str
    """How it is used."""
    takes_workers: bool = True
    """Whether it reads in worker processes: the fastest of `worker_choices` counts."""
    packs: bool = True
    """Whether it writes anything but single files."""

    @property
    def missing(self) -> str:
        """Why it cannot run here, and what to do; empty if it can."""
        if importlib.util.find_spec(self.module) is None:
            return f"not installed (pip install 'headrace[{self.extra}]')"
        return ""

    @abstractmethod
    def write(self, part: PeerPart, folder: Path) -> None:
        """Write samples; called in several processes at once with different parts."""

    def finish(self, folder: Path, num_parts: int) -> None:  # noqa: B027  most have nothing to do
        """Finish the dataset; called once after all parts are written."""

    @abstractmethod
    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Open the written samples; the returned function is called once per epoch.

        Args:
            folder: Where they were written.
            shape: Number and size of the samples and batches.
            num_workers: Worker processes; 0 reads in this one.
        """


class Samples(Numbered):
    """Samples of files, by a function that reads one."""

    def __init__(
        self, paths: Sequence[Path], read: Callable[[Path], NDArray[np.uint8]] = np.load
    ) -> None:
        self._paths, self._read = paths, read

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[NDArray[np.uint8], int]:
        return self._read(self._paths[index]), index


class H5pySamples(Numbered):
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


class Files(Loader):
    """One `.npy` file per sample, read by torch's DataLoader: the baseline without packing."""

    name = "DataLoader over files"
    module = "torch"
    settings = ".npy files, full shuffle"
    packs = False

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write samples as files."""
        for number, sample in part.items:
            np.save(folder / f"{number:08d}.npy", sample)

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Read files in any order."""
        paths = sorted(folder.glob("*.npy"))
        return loader_of(Samples(paths), shape.batch_size, num_workers)


class NaiveH5py(Loader):
    """HDF5 as it is mostly used: one file, written and read sample by sample."""

    name = "h5py, a read a sample"
    module = "h5py"
    settings = "contiguous, torch DataLoader, full shuffle"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write one file, sample by sample."""
        shape = (part.num_samples, *part.sample_shape)
        with h5py.File(folder / f"{part.number}.h5", "w") as file:
            samples = file.create_dataset("sample", shape, dtype="uint8")
            numbers = file.create_dataset("number", shape[:1], dtype="int64")
            for place, (number, sample) in enumerate(part.items):
                samples[place] = sample
                numbers[place] = number

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Read all files."""
        files: Numbered = ConcatDataset(map(H5pySamples, sorted(folder.glob("*.h5"))))
        return loader_of(files, shape.batch_size, num_workers)


PEERS: list[Loader] = [Files(), NaiveH5py()]
"""Peers of `--peers`; programs that compare with more add theirs."""


def worker_choices() -> tuple[int, ...]:
    """Return the numbers of worker processes to try: 0, 2, half of the cores and all."""
    cores = num_cores()
    return tuple(sorted({0, 2, max(cores // 2, 1), cores}))


def loader_of(samples: Numbered, batch_size: int, num_workers: int) -> Epoch:
    """Return shuffled batches of a map-style dataset by torch's DataLoader."""
    loader: DataLoader[tuple[NDArray[np.uint8], int]] = DataLoader(
        samples, batch_size, shuffle=True, drop_last=True, num_workers=num_workers
    )

    def epoch() -> Iterator[Pair]:
        for batch, numbers in loader:
            yield torch.as_tensor(batch), torch.as_tensor(numbers)

    return epoch
