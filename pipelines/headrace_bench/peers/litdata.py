"""LitData: chunks with an index, read by its own loader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace_bench.peers.peer import Epoch, Loader, Pair, PeerPart, PeerReading

_RANK = "DATA_OPTIMIZER_GLOBAL_RANK"


class LitData(Loader):
    """Chunks of 64 MB, as its documentation advises."""

    name = "litdata"
    module = "litdata"
    settings = "chunks of 64 MB, shuffle=True"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write chunks as a worker of `litdata.optimize` does."""
        from litdata.streaming.writer import BinaryWriter

        os.environ[_RANK] = str(part.number)  # names the chunks; read when the writer is made
        writer = BinaryWriter(str(folder), chunk_bytes="64MB")
        del os.environ[_RANK]
        for place, (number, sample) in enumerate(part.items):
            writer[place] = {"x": sample, "y": number}
        writer.done()

    def finish(self, folder: Path, num_parts: int) -> None:
        """Merge the indices of all parts."""
        from litdata.streaming.writer import BinaryWriter

        BinaryWriter(str(folder), chunk_bytes="64MB").merge(num_parts)

    def open(self, reading: PeerReading) -> Epoch:
        """Read chunks in any order."""
        from litdata import StreamingDataLoader, StreamingDataset

        samples = StreamingDataset(str(reading.folder), shuffle=True, drop_last=False)
        loader = StreamingDataLoader(
            samples, batch_size=reading.batch_size, num_workers=reading.num_workers
        )

        def epoch() -> Iterator[Pair]:
            for batch in loader:
                yield batch["x"], batch["y"]

        return epoch


PEER = LitData()
