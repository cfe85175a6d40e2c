"""Reading compressed arrays, shuffled: headrace's loader against h5py, one codec."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset

from headrace.errors import UserError
from headrace.files.manifest import Codec
from headrace.shards import format as names
from headrace.shards.chunks import ChunkTable, ChunkTables
from headrace_bench.contest import BenchOptions, Tick, Variant, compete, for_each
from headrace_bench.laps import Reader, Tuned
from headrace_bench.machine import num_cores
from headrace_bench.peers import Epoch, H5pySamples, Numbered, Pair, loader_of, worker_choices
from headrace_bench.read import loader_epoch, reader_of
from headrace_bench.records import BenchTable
from headrace_bench.samples import SampleShape, plan_shape, random_samples
from headrace_bench.shards import SAMPLE, write_dataset
from headrace_bench.workspace import workspace

_RUN = 16
"""Elements of equal value, one after another."""


def bench_compressed(codec: Codec, options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return one table per sample size; the options' peers are ignored.

    Raises:
        StorageFullError: The folder has no room.
    """
    return tuple(_table(options, size, codec, show) for size, show in for_each(options.sizes, tick))


def _table(options: BenchOptions, size: int, codec: Codec, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes)
    with workspace(options.folder, 2 * shape.num_bytes) as folder:
        tick(f"compressing {shape.num_samples:,} samples of {shape.sample_bytes:,} bytes")
        runs = random_samples(shape).reshape(-1)[: -(-shape.num_bytes // _RUN)]
        flat = np.repeat(runs, _RUN)[: shape.num_bytes]
        samples = flat.reshape(shape.num_samples, *shape.sample_shape)
        manifest = write_dataset(folder, samples, shape.sample_bytes, codec)
        paths = [folder / shard.file for shard in manifest.shards]
        reader = reader_of(options, samples)
        rows = compete(_variants(reader, shape, paths), options.rounds, tick)
    return BenchTable(
        title=f"read, {codec}, samples of {shape.sample_bytes:,} bytes ({shape.num_bytes:,} bytes "
        f"in {manifest.num_bytes:,}), batches of {shape.batch_size}",
        rows=rows,
        notes=(
            "Rates count decompressed bytes. Limit: the codec alone, all threads, in the order of "
            "the file.",
        ),
    )


def _variants(reader: Reader, shape: SampleShape, paths: list[Path]) -> list[Variant]:
    group, folder = names.FIELDS_GROUP, paths[0].parent.parent
    samples: Numbered = ConcatDataset(
        H5pySamples(path, f"{group}/{SAMPLE}", f"{group}/label") for path in paths
    )
    by_h5py = Tuned(
        replace(reader, num_samples=0),
        lambda workers: loader_of(samples, shape.batch_size, workers),
        worker_choices(),
        "torch DataLoader, full shuffle",
    )
    ours = reader.by(loader_epoch(folder, shape.batch_size))
    return [
        reader.by(_limit_epoch(shape, paths)).variant("limit", f"{num_cores()} threads"),
        ours.variant("headrace", "BatchLoader as in training, full shuffle"),
        by_h5py.variant("h5py, a read a sample"),
    ]


def _limit_epoch(shape: SampleShape, paths: list[Path]) -> Epoch:
    """Return batches in the order of the files, decompressed in threads, one each."""
    tables = [_table_of(path) for path in paths]
    contents = [np.fromfile(path, dtype=np.uint8) for path in paths]
    pool = ThreadPoolExecutor(num_cores(), thread_name_prefix="bench-decompress")
    size = shape.batch_size
    rooms = [np.empty((size, *shape.sample_shape), np.uint8) for _ in range(num_cores())]
    spans = [
        (number, start, min(start + size, table.num_rows))
        for number, table in enumerate(tables)
        for start in range(0, table.num_rows, size)
    ]
    firsts = np.cumsum([0, *(table.num_rows for table in tables)])

    def fill(room: NDArray[np.uint8], span: tuple[int, int, int]) -> Pair:
        number, start, stop = span
        wanted = np.arange(start, stop)
        tables[number].fill(contents[number], wanted, room, wanted - start)
        return torch.from_numpy(room[: stop - start]), torch.from_numpy(wanted + firsts[number])

    def epoch() -> Iterator[Pair]:
        for first in range(0, len(spans), len(rooms)):
            yield from pool.map(fill, rooms, spans[first : first + len(rooms)])

    return epoch


def _table_of(path: Path) -> ChunkTable:
    table = ChunkTables().table(path, f"{names.FIELDS_GROUP}/{SAMPLE}")
    if table is None:
        raise UserError(
            f"This build of hdf5plugin keeps its functions to itself, so that only HDF5 can read "
            f"{path}",
            "Install hdf5plugin from its wheel (pip).",
        )
    return table
