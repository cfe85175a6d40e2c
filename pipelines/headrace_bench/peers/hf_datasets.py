"""Hugging Face datasets as documented: arrays in Arrow files, batches in its NumPy format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace_bench.peers.peer import Epoch, Loader, Pair, PeerPart, PeerReading


class HfDatasets(Loader):
    """Arrow files with a column of samples and one of their numbers, read batch by batch."""

    name = "HF datasets"
    module = "datasets"
    settings = 'Array3D column, with_format("numpy") (faster than "torch"), full shuffle'
    takes_workers = False
    row_format = "numpy"
    """The library's format of rows."""

    def column(self, part: PeerPart) -> Any:
        """Return the type of the column of samples."""
        from datasets import Array3D

        return Array3D(part.sample_shape, "uint8")

    def cell(self, sample: NDArray[np.uint8]) -> object:
        """Return a sample as it is written."""
        return sample

    def tensors(self, rows: Any, reading: PeerReading) -> Pair:
        """Return a batch of rows."""
        del reading
        return torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write one Arrow file."""
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"x": self.column(part), "y": Value("int64")})
        path = str(folder / f"{part.number}.arrow")
        with ArrowWriter(features=features, path=path) as writer:
            for number, sample in part.items:
                writer.write({"x": self.cell(sample), "y": number})
            writer.finalize()

    def open(self, reading: PeerReading) -> Epoch:
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


PEER = HfDatasets()
