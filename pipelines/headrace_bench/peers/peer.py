"""The interface of a peer, and the existing peers."""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace_bench.machine import num_cores

_EXTRA = "bench"
"""Optional dependencies of headrace that install the peers."""

_OWN_EXTRA = {"mosaicml-streaming": "bench-mosaic"}
"""Extras of peers that need older packages than `constraints.txt`, by distribution."""

MODULES = ("files", "naive_h5py", "webdataset", "litdata", "mosaic", "hf_datasets", "hf_arrow")
"""Modules of this package with a `PEER` each."""

Pair = tuple[Tensor, Tensor]
"""A batch: samples `(batch, side, side, 3) uint8` and their numbers `(batch,) int64`."""

Epoch = Callable[[], Iterator[Pair]]
"""Begins a pass over all samples, shuffled."""


@dataclass(frozen=True, kw_only=True)
class PeerPart:
    """The samples that one process writes."""

    number: int
    """Number of the part, from 0."""
    num_samples: int
    sample_shape: tuple[int, ...]
    items: Iterable[tuple[int, NDArray[np.uint8]]]
    """Number and content of each sample."""


@dataclass(frozen=True, kw_only=True)
class PeerReading:
    """How to read the written samples."""

    folder: Path
    sample_shape: tuple[int, ...]
    batch_size: int
    num_workers: int
    """Worker processes; 0 reads in this one."""


def worker_choices() -> tuple[int, ...]:
    """Return the numbers of worker processes to try: 0, 2, half of the cores and all."""
    cores = num_cores()
    return tuple(sorted({0, 2, max(cores // 2, 1), cores}))


class Loader(ABC):
    """One library."""

    name: str
    module: str
    package: str = ""
    """Distribution, if its name differs from the module's."""
    settings: str
    """How it is used."""
    takes_workers: bool = True
    """Whether it reads in worker processes: the fastest of `worker_choices` counts."""
    packs: bool = True
    """Whether it writes anything but single files."""

    @property
    def folder(self) -> str:
        """Name of the folder that it writes into: its module's, one of `MODULES`."""
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def write(self, part: PeerPart, folder: Path) -> None:
        """Write samples; called in several processes at once with different parts."""

    def finish(self, folder: Path, num_parts: int) -> None:  # noqa: B027  most have nothing to do
        """Finish the dataset; called once after all parts are written."""

    @abstractmethod
    def open(self, reading: PeerReading) -> Epoch:
        """Open the written samples; the returned function is called once per epoch."""


def load(module: str) -> Loader:
    """Return the peer of a module in `MODULES`."""
    found: Any = importlib.import_module(f"headrace_bench.peers.{module}")
    peer: Loader = found.PEER
    return peer


def missing(peer: Loader) -> str:
    """Return why a peer cannot run here, and what to do; empty if it can."""
    if importlib.util.find_spec(peer.module) is None:
        extra = _OWN_EXTRA.get(peer.package, _EXTRA)
        return f"not installed (pip install 'headrace[{extra}]')"
    return ""
