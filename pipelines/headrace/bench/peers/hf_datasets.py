"""Hugging Face datasets as documented: arrays in Arrow files, batches in its NumPy format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

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
        from datasets import Array3D, Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"x": Array3D(part.sample_shape, "uint8"), "y": Value("int64")})
        path = str(folder / f"{part.number}.arrow")
        with ArrowWriter(features=features, path=path) as writer:
            for number, sample in part.items:
                writer.write({"x": sample, "y": number})
            writer.finalize()

    def finish(self, folder: Path, num_parts: int) -> None:
        """Nothing is left to do."""

    def open(self, reading: Reading) -> Epoch:
        """Take rows of the mapped tables."""
        from datasets import Dataset, concatenate_datasets

        paths = sorted(str(path) for path in reading.folder.glob("*.arrow"))
        samples = concatenate_datasets([Dataset.from_file(path) for path in paths])
        arrays = samples.with_format("numpy")

        def epoch() -> Iterator[Pair]:
            order = np.random.default_rng().permutation(len(samples))
            size = reading.batch_size
            for start in range(0, len(order) - size + 1, size):
                batch = arrays[order[start : start + size].tolist()]
                yield torch.from_numpy(batch["x"]), torch.from_numpy(batch["y"])

        return epoch


PEER = HfDatasets()
