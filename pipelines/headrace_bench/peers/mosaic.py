"""MosaicML Streaming: MDS shards, shuffled by its own sampler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from headrace_bench.peers.peer import Epoch, Loader, Pair, PeerPart, PeerReading

_SHARD_BYTES = 64 * 2**20


class Mosaic(Loader):
    """MDS shards of 64 MiB, samples as bytes."""

    name = "mosaicml-streaming"
    package = "mosaicml-streaming"
    module = "streaming"
    settings = "MDS shards of 64 MiB, shuffle=True"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write MDS shards into a folder of the part."""
        from streaming import MDSWriter

        columns = {"x": "bytes", "y": "int"}
        out = str(folder / f"{part.number}")
        with MDSWriter(out=out, columns=columns, size_limit=_SHARD_BYTES) as writer:
            for number, sample in part.items:
                writer.write({"x": sample.tobytes(), "y": number})

    def finish(self, folder: Path, num_parts: int) -> None:
        """Merge the indices of all parts."""
        from streaming.base.util import merge_index

        merge_index(str(folder), keep_local=True)

    def open(self, reading: PeerReading) -> Epoch:
        """Read MDS shards."""
        from streaming import StreamingDataset

        samples = StreamingDataset(
            local=str(reading.folder), shuffle=True, batch_size=reading.batch_size
        )

        def decode(items: list[dict[str, Any]]) -> Pair:
            values = [np.frombuffer(bytearray(item["x"]), dtype=np.uint8) for item in items]
            batch = default_collate(values).reshape(len(items), *reading.sample_shape)
            return batch, torch.tensor([item["y"] for item in items])

        def epoch() -> Iterator[Pair]:
            yield from DataLoader(
                samples,
                batch_size=reading.batch_size,
                num_workers=reading.num_workers,
                collate_fn=decode,
            )

        return epoch


PEER = Mosaic()
