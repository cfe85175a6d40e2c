"""Hugging Face datasets as documented: arrays in Arrow files, batches in its NumPy format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.bench.peers.peer import Epoch, Pair, Part, Reading


class HfDatasets:
    """Arrow files with a column of arrays, taken a batch at a time."""

    name = "HF datasets"
    folder = "hf_datasets"
    package = "datasets"
    module = "datasets"
    settings = 'Array3D column, with_format("numpy") (faster than "torch"), full shuffle'
    workers = (0,)
    packs = True

    def write(self, part: Part, folder: Path) -> None:
        """Write one Arrow file."""
        from datasets import Array3D

        write_rows(part, folder, Array3D(part.sample_shape, "uint8"), lambda sample: sample)

    def finish(self, folder: Path, num_parts: int) -> None:
        """Nothing is left to do."""

    def open(self, reading: Reading) -> Epoch:
        """Take rows of the mapped tables."""

        def tensors(rows: Any) -> Pair:
            return torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])

        return epochs(reading, "numpy", tensors)


def write_rows(
    part: Part, folder: Path, column: Any, cell: Callable[[NDArray[np.uint8]], object]
) -> None:
    """Write an Arrow file with samples and their numbers.

    Args:
        part: The samples.
        folder: Folder of the file.
        column: Type of the column of samples.
        cell: Gives a sample as it is written.
    """
    from datasets import Features, Value
    from datasets.arrow_writer import ArrowWriter

    features = Features({"x": column, "y": Value("int64")})
    path = str(folder / f"{part.number}.arrow")
    with ArrowWriter(features=features, path=path) as writer:
        for number, sample in part.items:
            writer.write({"x": cell(sample), "y": number})
        writer.finalize()


def epochs(reading: Reading, row_format: str, tensors: Callable[[Any], Pair]) -> Epoch:
    """Shuffled passes over the mapped files that `write_rows` has written.

    Args:
        reading: What is read.
        row_format: Format of the library in which rows are taken.
        tensors: Makes a batch of rows.
    """
    from datasets import Dataset, concatenate_datasets

    paths = sorted(str(path) for path in reading.folder.glob("*.arrow"))
    samples = concatenate_datasets([Dataset.from_file(path) for path in paths])
    table = samples.with_format(row_format)

    def epoch() -> Iterator[Pair]:
        order = np.random.default_rng().permutation(len(samples))
        size = reading.batch_size
        for start in range(0, len(order) - size + 1, size):
            yield tensors(table[order[start : start + size].tolist()])

    return epoch


PEER = HfDatasets()
