"""`headrace bench` against other libraries as well: MosaicML, LitData, webdataset, HF datasets.

PYTHONPATH=tests python -m benchmarks.peers read --peers
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, default_collate

from headrace_bench.command import app
from headrace_bench.peers import PEERS, Epoch, Loader, Pair, PeerPart
from headrace_bench.samples import SampleShape

_RANK = "DATA_OPTIMIZER_GLOBAL_RANK"


class WebDataset(Loader):
    """Tar shards of about 16 MiB, read in sequence, shuffled in a buffer."""

    name = "webdataset"
    module = "webdataset"
    settings = "tar shards of 16 MiB, shuffle buffer of 1000 samples"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write tar files."""
        import webdataset

        pattern = str(folder / f"{part.number}-%05d.tar")
        with webdataset.ShardWriter(pattern, maxsize=16 * 2**20, verbose=0) as writer:
            for number, sample in part.items:
                writer.write(
                    {"__key__": f"{number:08d}", "x": sample.tobytes(), "y": f"{number}".encode()}
                )

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Read tar files in any order."""
        import webdataset

        def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
            values = np.frombuffer(bytearray(sample["x"]), dtype=np.uint8)
            return torch.from_numpy(values.reshape(shape.sample_shape)), int(sample["y"])

        urls = sorted(str(path) for path in folder.glob("*.tar"))
        samples = webdataset.WebDataset(urls, shardshuffle=len(urls), empty_check=False)
        samples = samples.shuffle(1000).map(decode)

        def epoch() -> Iterator[Pair]:
            yield from DataLoader(samples, batch_size=shape.batch_size, num_workers=num_workers)

        return epoch


class LitData(Loader):
    """Chunks of 64 MB with an index, as its documentation advises, read by its own loader."""

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

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Read chunks in any order."""
        from litdata import StreamingDataLoader, StreamingDataset

        samples = StreamingDataset(str(folder), shuffle=True, drop_last=False)
        loader = StreamingDataLoader(samples, batch_size=shape.batch_size, num_workers=num_workers)

        def epoch() -> Iterator[Pair]:
            for batch in loader:
                yield batch["x"], batch["y"]

        return epoch


class Mosaic(Loader):
    """MDS shards of 64 MiB, samples as bytes, shuffled by its own sampler."""

    name = "mosaicml-streaming"
    package = "mosaicml-streaming"
    module = "streaming"
    extra = "bench-mosaic"  # it needs older packages than `constraints.txt`
    settings = "MDS shards of 64 MiB, shuffle=True"

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write MDS shards into a folder of the part."""
        from streaming import MDSWriter

        columns = {"x": "bytes", "y": "int"}
        out = str(folder / f"{part.number}")
        with MDSWriter(out=out, columns=columns, size_limit=64 * 2**20) as writer:
            for number, sample in part.items:
                writer.write({"x": sample.tobytes(), "y": number})

    def finish(self, folder: Path, num_parts: int) -> None:
        """Merge the indices of all parts."""
        from streaming.base.util import merge_index

        merge_index(str(folder), keep_local=True)

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Read MDS shards."""
        from streaming import StreamingDataset

        samples = StreamingDataset(local=str(folder), shuffle=True, batch_size=shape.batch_size)

        def decode(items: list[dict[str, Any]]) -> Pair:
            values = [np.frombuffer(bytearray(item["x"]), dtype=np.uint8) for item in items]
            batch = default_collate(values).reshape(len(items), *shape.sample_shape)
            return batch, torch.tensor([item["y"] for item in items])

        def epoch() -> Iterator[Pair]:
            yield from DataLoader(
                samples,
                batch_size=shape.batch_size,
                num_workers=num_workers,
                collate_fn=decode,
            )

        return epoch


class HfDatasets(Loader):
    """Arrow files with a column of samples and one of their numbers, read batch by batch."""

    name = "HF datasets"
    module = "datasets"
    settings = 'Array3D column, with_format("numpy") (faster than "torch"), full shuffle'
    takes_workers = False
    row_format = "numpy"
    """The library's format of rows."""

    def column(self, part: PeerPart) -> Any:
        """Return the type of the column of samples."""
        from datasets import Array3D

        return Array3D(part.sample_shape, "uint8")

    def cell(self, sample: NDArray[np.uint8]) -> object:
        """Return a sample as it is written."""
        return sample

    def tensors(self, rows: Any, shape: SampleShape) -> Pair:
        """Return a batch of rows."""
        del shape
        return torch.from_numpy(rows["x"]), torch.from_numpy(rows["y"])

    def write(self, part: PeerPart, folder: Path) -> None:
        """Write one Arrow file."""
        from datasets import Features, Value
        from datasets.arrow_writer import ArrowWriter

        features = Features({"x": self.column(part), "y": Value("int64")})
        path = str(folder / f"{part.number}.arrow")
        with ArrowWriter(features=features, path=path) as writer:
            for number, sample in part.items:
                writer.write({"x": self.cell(sample), "y": number})
            writer.finalize()

    def open(self, folder: Path, shape: SampleShape, num_workers: int) -> Epoch:
        """Take rows of the mapped tables, shuffled."""
        from datasets import Dataset, concatenate_datasets

        paths = sorted(str(path) for path in folder.glob("*.arrow"))
        samples = concatenate_datasets([Dataset.from_file(path) for path in paths])
        table = samples.with_format(self.row_format)

        def epoch() -> Iterator[Pair]:
            order = np.random.default_rng().permutation(len(samples))
            size = shape.batch_size
            for start in range(0, len(order) - size + 1, size):
                yield self.tensors(table[order[start : start + size].tolist()], shape)

        return epoch


class HfArrow(HfDatasets):
    """`HfDatasets` with bytes, viewed as arrays without the library's own conversions."""

    name = "HF datasets, Arrow by hand"
    settings = "bytes column, Arrow buffers viewed as a tensor, full shuffle"
    row_format = "arrow"

    def column(self, part: PeerPart) -> Any:
        """Return the type of bytes."""
        from datasets import Value

        del part
        return Value("large_binary")

    def cell(self, sample: NDArray[np.uint8]) -> object:
        """Return the bytes of a sample."""
        return sample.tobytes()

    def tensors(self, rows: Any, shape: SampleShape) -> Pair:
        """Return a batch that shares the memory of its rows."""
        table = rows.combine_chunks()
        batch = _flat(table["x"].chunk(0)).reshape(-1, *shape.sample_shape)
        return batch, torch.from_numpy(table["y"].to_numpy().copy())


def _flat(column: Any) -> torch.Tensor:
    """Return the bytes of all rows of an Arrow column of `large_binary`, without a copy."""
    ends = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :]
    values = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    with warnings.catch_warnings():  # torch warns that Arrow's memory must not be written to
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(values[int(ends[0]) : int(ends[len(column)])])


LIBRARIES = (WebDataset(), LitData(), Mosaic(), HfDatasets(), HfArrow())


def main() -> None:
    """Run a command of `headrace bench` whose `--peers` has these libraries, too."""
    from benchmarks import peers  # by its name, so that other processes find its classes

    PEERS.extend(peers.LIBRARIES)
    app(prog_name="headrace bench")


if __name__ == "__main__":
    main()
