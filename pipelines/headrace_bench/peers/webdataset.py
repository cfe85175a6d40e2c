"""WebDataset: samples in tar files, read in sequence, shuffled in a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from headrace_bench.peers.peer import Epoch, Loader, Pair, PeerPart, PeerReading

_SHARD_BYTES = 16 * 2**20
_BUFFER = 1000


class WebDataset(Loader):
    """Tar shards of about 16 MiB."""

    name = "webdataset"
    module = "webdataset"
    settings = f"tar shards of 16 MiB, shuffle buffer of {_BUFFER} samples"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write tar files."""
        import webdataset

        pattern = str(folder / f"{part.number}-%05d.tar")
        with webdataset.ShardWriter(pattern, maxsize=_SHARD_BYTES, verbose=0) as writer:
            for number, sample in part.items:
                writer.write(
                    {"__key__": f"{number:08d}", "x": sample.tobytes(), "y": f"{number}".encode()}
                )

    def open(self, reading: PeerReading) -> Epoch:
        """Read tar files in any order."""
        import webdataset

        def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
            values = np.frombuffer(bytearray(sample["x"]), dtype=np.uint8)
            return torch.from_numpy(values.reshape(reading.sample_shape)), int(sample["y"])

        urls = sorted(str(path) for path in reading.folder.glob("*.tar"))
        samples = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        samples = samples.shuffle(_BUFFER).map(decode)

        def epoch() -> Iterator[Pair]:
            yield from DataLoader(
                samples, batch_size=reading.batch_size, num_workers=reading.num_workers
            )

        return epoch


PEER = WebDataset()
