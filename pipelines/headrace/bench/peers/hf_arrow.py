"""Hugging Face datasets by hand: bytes in Arrow files, viewed as arrays without its formats."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.bench.peers.peer import Epoch, Pair, Part, Reading


class HfArrow:
    """Arrow files with a column of bytes; the user makes tensors of Arrow's buffers."""

    name = "HF datasets, Arrow by hand"
    folder = "hf_arrow"
    package = "datasets"
    module = "datasets"
    settings = "bytes column, Arrow buffers viewed as a tensor, full shuffle"
    workers = (0,)
    packs = True

    def write(self, part: Part, folder: Path) -> None:
        """Write one Arrow file."""
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"x": Value("large_binary"), "y": Value("int64")})
        path = str(folder / f"{part.number}.arrow")
        with ArrowWriter(features=features, path=path) as writer:
            for number, sample in part.items:
                writer.write({"x": sample.tobytes(), "y": number})
            writer.finalize()

    def finish(self, folder: Path, num_parts: int) -> None:
        """Nothing is left to do."""

    def open(self, reading: Reading) -> Epoch:
        """Take rows of the mapped tables."""
        from datasets import Dataset, concatenate_datasets

        paths = sorted(str(path) for path in reading.folder.glob("*.arrow"))
        samples = concatenate_datasets([Dataset.from_file(path) for path in paths])
        tables = samples.with_format("arrow")

        def epoch() -> Iterator[Pair]:
            order = np.random.default_rng().permutation(len(samples))
            size = reading.batch_size
            for start in range(0, len(order) - size + 1, size):
                table = tables[order[start : start + size].tolist()].combine_chunks()
                batch = _flat(table["x"].chunk(0)).reshape(size, *reading.sample_shape)
                yield batch, torch.from_numpy(table["y"].to_numpy().copy())

        return epoch


def _flat(column: Any) -> torch.Tensor:
    """Bytes of all rows of an Arrow column of `large_binary`, without a copy."""
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :]
    values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    with warnings.catch_warnings():  # torch warns that Arrow's memory must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values[int(ends[0]) : int(ends[len(column)])])


PEER = HfArrow()
