"""Hugging Face datasets by hand: bytes in Arrow files, viewed as arrays without its formats."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from headrace_bench.peers.hf_datasets import HfPeer
from headrace_bench.peers.peer import Pair, Part, Reading


def _column(part: Part) -> Any:
    from datasets import Value

    del part
    return Value("large_binary")


def _tensors(rows: Any, reading: Reading) -> Pair:
    table = rows.combine_chunks()
    batch = _flat(table["x"].chunk(0)).reshape(-1, *reading.sample_shape)
    return batch, torch.from_numpy(table["y"].to_numpy().copy())


def _flat(column: Any) -> torch.Tensor:
    """Bytes of all rows of an Arrow column of `large_binary`, without a copy."""
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :]
    values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    with warnings.catch_warnings():  # torch warns that Arrow's memory must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values[int(ends[0]) : int(ends[len(column)])])


PEER = HfPeer(
    name="HF datasets, Arrow by hand",
    folder="hf_arrow",
    settings="bytes column, Arrow buffers viewed as a tensor, full shuffle",
    column=_column,
    cell=lambda sample: sample.tobytes(),
    row_format="arrow",
    tensors=_tensors,
)
