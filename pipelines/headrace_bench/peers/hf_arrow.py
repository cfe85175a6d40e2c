"""Hugging Face datasets by hand: bytes in Arrow files, viewed as arrays without its formats."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace_bench.peers.hf_datasets import HfDatasets
from headrace_bench.peers.peer import Pair, PeerPart, PeerReading


class HfArrow(HfDatasets):
    """`HfDatasets` with bytes, without the library's own conversions."""

    name = "HF datasets, Arrow by hand"
    settings = "bytes column, Arrow buffers viewed as a tensor, full shuffle"
    row_format = "arrow"

    def column(self, part: PeerPart) -> Any:
        """See `HfDatasets`."""
        from datasets import Value

        del part
        return Value("large_binary")

    def cell(self, sample: NDArray[np.uint8]) -> object:
        """See `HfDatasets`."""
        return sample.tobytes()

    def tensors(self, rows: Any, reading: PeerReading) -> Pair:
        """See `HfDatasets`."""
        table = rows.combine_chunks()
        batch = _flat(table["x"].chunk(0)).reshape(-1, *reading.sample_shape)
        return batch, torch.from_numpy(table["y"].to_numpy().copy())


def _flat(column: Any) -> torch.Tensor:
    """Return the bytes of all rows of an Arrow column of `large_binary`, without a copy."""
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :]
    values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    with warnings.catch_warnings():  # torch warns that Arrow's memory must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values[int(ends[0]) : int(ends[len(column)])])


PEER = HfArrow()
