"""Hugging Face datasets as documented: arrays in Arrow files, batches in its NumPy format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace_bench.peers.peer import Epoch, Pair, Part, Reading


@dataclass(frozen=True, kw_only=True)
class HfPeer:
    """Arrow files with a column of samples and one of their numbers, taken a batch at a time."""

    name: str
    """Name shown."""
    folder: str
    """Name of the folder that it writes into."""
    settings: str
    """How it is used."""
    column: Callable[[Part], Any]
    """Type of the column of samples."""
    cell: Callable[[NDArray[np.uint8]], object]
    """Gives a sample as it is written."""
    row_format: str
    """Format of the library in which rows are taken."""
    tensors: Callable[[Any, Reading], Pair]
    """Makes a batch of rows."""
    package: str = "datasets"
    module: str = "datasets"
    workers: tuple[int, ...] = (0,)
    packs: bool = True

    def write(self, part: Part, folder: Path) -> None:
        """Write one Arrow file."""
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"x": self.column(part), "y": Value("int64")})
        path = str(folder / f"{part.number}.arrow")
        with ArrowWriter(features=features, path=path) as writer:
            for number, sample in part.items:
                writer.write({"x": self.cell(sample), "y": number})
            writer.finalize()

    def finish(self, folder: Path, num_parts: int) -> None:
        """Nothing is left to do."""

    def open(self, reading: Reading) -> Epoch:
        """Take rows of the mapped tables, shuffled."""
        from datasets import Dataset, concatenate_datasets

        paths = sorted(str(path) for path in reading.folder.glob("*.arrow"))
        samples = concatenate_datasets([Dataset.from_file(path) for path in paths])
        table = samples.with_format(self.row_format)

        def epoch() -> Iterator[Pair]:
            order = np.random.default_rng().permutation(len(samples))
            size = reading.batch_size
            for start in range(0, len(order) - size + 1, size):
                yield self.tensors(table[order[start : start + size].tolist()], reading)

        return epoch


def _column(part: Part) -> Any:
    from datasets import Array3D

    return Array3D(part.sample_shape, "uint8")


def _tensors(rows: Any, reading: Reading) -> Pair:
    del reading
    return torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])


PEER = HfPeer(
    name="HF datasets",
    folder="hf_datasets",
    settings='Array3D column, with_format("numpy") (faster than "torch"), full shuffle',
    column=_column,
    cell=lambda sample: sample,
    row_format="numpy",
    tensors=_tensors,
)
