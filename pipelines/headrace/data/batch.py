"""One batch of a split: a gather for each fixed field, decoding for the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from headrace.data.collate import collate, varies
from headrace.data.decode import Decoder
from headrace.data.gather import Gatherer
from headrace.data.order import Indices
from headrace.shards.dataset import ShardedDataset

Batch = dict[str, Any]
"""Fields by name, and `sample_id (batch,) int64`.

Each is a tensor `(batch, *shape)`; fields that vary in shape by nature, such as text and arrays of
varying length, are lists of samples unless they are filled up, see `headrace.data.collate`.
"""

SAMPLE_ID = "sample_id"


def read_batch(
    dataset: ShardedDataset,
    indices: Indices,
    fields: Sequence[str],
    decoder: Decoder,
    pad: float | None = None,
) -> Batch:
    """Read samples of a split, as `gather_batch`, but into memory of their own."""
    return gather_batch(Gatherer(dataset), indices, fields, decoder, pad)


def gather_batch(
    gatherer: Gatherer,
    indices: Indices,
    fields: Sequence[str],
    decoder: Decoder,
    pad: float | None = None,
) -> Batch:
    """Read samples of a split.

    Args:
        gatherer: Gathers fixed fields of the split.
        indices: Places in the split, `(batch,) int64`.
        fields: Names of the fields wanted.
        decoder: Decodes fields that hold encoded samples.
        pad: Fills up arrays of varying length; None gives lists.

    Raises:
        DataError: Encoded samples of one batch differ in shape, or cannot be decoded.
        ShardError: A shard is damaged.
    """
    dataset = gatherer.dataset
    infos = [dataset.field(name) for name in (*fields, SAMPLE_ID)]
    with dataset.holding(indices):
        batch: Batch = {}
        batch |= gatherer.gather([info for info in infos if info.layout == "fixed"], indices)
        for info in infos:
            if info.layout == "ragged":
                items = decoder.decode(dataset, info, indices, gatherer.lend)
                sources = partial(dataset.sources, indices)
                batch |= (
                    {info.name: items}
                    if isinstance(items, Tensor)
                    else collate(info.name, items, sources, varying=varies(info), pad=pad)
                )
    return batch
