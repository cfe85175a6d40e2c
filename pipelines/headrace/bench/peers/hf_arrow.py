"""Hugging Face datasets by hand: bytes in Arrow files, viewed as arrays without its formats."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.bench.peers.hf_datasets import epochs, write_rows
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
        from datasets import Value

        write_rows(part, folder, Value("large_binary"), lambda sample: sample.tobytes())

    def finish(self, folder: Path, num_parts: int) -> None:
        """Nothing is left to do."""

    def open(self, reading: Reading) -> Epoch:
        """Take rows of the mapped tables."""

        def tensors(rows: Any) -> Pair:
            table = rows.combine_chunks()
            batch = _flat(table["x"].chunk(0)).reshape(-1, *reading.sample_shape)
            return batch, torch.from_numpy(table["y"].to_numpy().copy())

        return epochs(reading, "arrow", tensors)


def _flat(column: Any) -> torch.Tensor:
    """Bytes of all rows of an Arrow column of `large_binary`, without a copy."""
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :]
    values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    with warnings.catch_warnings():  # torch warns that Arrow's memory must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values[int(ends[0]) : int(ends[len(column)])])


PEER = HfArrow()
