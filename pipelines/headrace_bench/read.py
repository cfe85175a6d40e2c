"""Reading shuffled batches: from memory, by headrace's loader, by peers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.data.dataset import Reading
from headrace.data.gather import Gatherer, Located
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace_bench.contest import (
    FAULTS,
    BenchOptions,
    Tick,
    Variant,
    compete,
    failure,
    for_each,
    missing_row,
)
from headrace_bench.laps import Check, Reader, Tuned, read_lap
from headrace_bench.peers import Epoch, Loader, Pair, PeerPart, worker_choices
from headrace_bench.records import BenchRow, BenchTable, Kind, Lap
from headrace_bench.samples import SampleShape, plan_shape, random_samples
from headrace_bench.shards import SAMPLE, SPLIT, write_dataset
from headrace_bench.workspace import workspace

_NUM_ORDERS = 4
"""Shuffled orders that the limit uses cyclically, drawn before the measured time."""

_MAX, _MAX_WITH_PEERS = 2**20, 2**15
"""Most samples of a table: peers need many microseconds for each, and the user waits."""


def bench_read(options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return one table per sample size.

    Raises:
        StorageFullError: The folder has no room.
    """
    return tuple(_table(options, size, show) for size, show in for_each(options.sizes, tick))


def loader_epoch(
    folder: Path, batch_size: int, reading: Reading | None = None, *, prefetch: bool = True
) -> Epoch:
    """Return passes over a dataset by headrace's loader, each shuffled again."""
    dataset = ShardedDataset(folder, SPLIT)
    order = TrainOrder(num_samples=len(dataset), seed=0, global_batch_size=batch_size)
    ahead = DataSpec().prefetch if prefetch else 0
    loader = BatchLoader(dataset, order, prefetch=ahead, reading=reading or Reading())
    epochs = count()

    def epoch() -> Iterator[Pair]:
        loader.set_epoch(next(epochs))
        for batch in loader:
            yield batch[SAMPLE], batch["label"]

    return epoch


def _table(options: BenchOptions, size: int, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes, _MAX_WITH_PEERS if options.peers else _MAX)
    needed_bytes = int(1.1 * shape.num_bytes * (2 + len(options.peers)))
    with workspace(options.folder, needed_bytes) as folder:
        tick(f"making {shape.num_samples:,} samples of {shape.sample_bytes:,} bytes")
        samples = random_samples(shape)
        reader = reader_of(options, samples)
        variants = _own_variants(reader, shape, samples, folder)
        rows: list[BenchRow] = []
        for peer in options.peers:
            tick(f"writing samples for {peer.name}")
            target = folder / type(peer).__name__
            problem = peer.missing or _written(peer, samples, target)
            if problem:
                rows.append(missing_row(peer, problem))
                shutil.rmtree(target, ignore_errors=True)
            else:
                variants.append(_peer_variant(peer, target, reader, shape))
        rows = [*compete(variants, options.rounds, tick), *rows]
    return BenchTable(
        title=f"read, samples of {shape.sample_bytes:,} bytes, batches of {shape.batch_size}, "
        f"{shape.num_samples:,} samples",
        rows=tuple(rows),
        notes=(
            "Limit: torch.index_select from one tensor into one buffer, in the same order; "
            "from mapped shards: by known addresses, into memory as the loader's.",
            "Peers: the time until the first batch of an epoch (start of workers) is excluded.",
        ),
    )


def _own_variants(
    reader: Reader, shape: SampleShape, samples: NDArray[np.uint8], folder: Path
) -> list[Variant]:
    dataset, size = folder / "headrace", shape.batch_size
    write_dataset(dataset, samples, shape.sample_bytes)
    limit = reader.by(_limit_epoch(samples, size))
    ways: tuple[tuple[Epoch, Kind, str, str], ...] = (
        (loader_epoch(dataset, size), "headrace", "BatchLoader as in training, full shuffle", ""),
        (_mapped_epoch(dataset, size), "limit", "torch.index_select from the shards, all threads",
         "limit, mapped shards"),
        (loader_epoch(dataset, size, prefetch=False), "headrace", "each batch read at its request",
         "headrace, prefetch off"),
        (loader_epoch(dataset, size, Reading(verify=True)), "headrace", "data.verify_samples",
         "headrace, samples verified"),
    )  # fmt: skip
    return [
        *(_limit_variant(limit, number) for number in sorted({1, torch.get_num_threads()})),
        *(reader.by(epoch).variant(kind, how, name) for epoch, kind, how, name in ways),
    ]


def _limit_variant(reader: Reader, num_threads: int) -> Variant:
    """Return the limit; on a busy machine one thread is faster than several, which wait."""

    def lap(is_warm_up: bool) -> Lap:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            return read_lap(reader, is_warm_up)
        finally:
            torch.set_num_threads(before)

    name = f"limit, {num_threads} thread{'s' * (num_threads > 1)}"
    how = "torch.index_select"
    return Variant(name=name, kind="limit", is_yardstick=True, lap=lap, settings=how)


def _peer_variant(peer: Loader, folder: Path, reader: Reader, shape: SampleShape) -> Variant:
    """Return a peer that reads what it wrote into `folder`."""
    choices = worker_choices() if peer.takes_workers else (0,)
    work, epoch_by = replace(reader, num_samples=0), partial(peer.open, folder, shape)
    return Tuned(work, epoch_by, choices, peer.settings).variant(peer.name)


def reader_of(options: BenchOptions, samples: NDArray[np.uint8]) -> Reader:
    """Return a reader of samples `(num_samples, …)`, so far of none, with the options' laps."""
    return Reader(
        epoch=lambda: iter(()),
        lap_s=options.lap_s,
        num_samples=len(samples),
        check=check_against(torch.from_numpy(samples)),
    )


def check_against(samples: Tensor) -> Check:
    """Return a check that compares batches with the samples of their numbers."""
    return lambda batch, numbers: torch.equal(batch, samples[numbers])


def _limit_epoch(samples: NDArray[np.uint8], batch_size: int) -> Epoch:
    source = torch.from_numpy(samples)
    buffer = torch.empty((batch_size, *source.shape[1:]), dtype=source.dtype)
    orders = [tuple(map(torch.from_numpy, each)) for each in _orders(len(samples), batch_size)]
    numbers = count()

    def epoch() -> Iterator[Pair]:
        for indices in orders[next(numbers) % _NUM_ORDERS]:
            torch.index_select(source, 0, indices, out=buffer)
            yield buffer, indices

    return epoch


def _mapped_epoch(folder: Path, batch_size: int) -> Epoch:
    """Return the limit from mapped shards: its loss is due to small pages, not to a loader."""
    dataset = ShardedDataset(folder, SPLIT)
    gatherer = Gatherer(dataset)
    find = partial(gatherer.find, [dataset.field(SAMPLE)])
    epochs: list[tuple[Located, Tensor]] = [
        (find(indices.reshape(-1)), torch.from_numpy(indices))
        for indices in _orders(len(dataset), batch_size)
    ]
    numbers = count()

    def epoch() -> Iterator[Pair]:
        found, indices = epochs[next(numbers) % _NUM_ORDERS]
        for number, these in enumerate(indices):
            start = number * batch_size
            yield gatherer.take(found, start, start + batch_size)[SAMPLE], these

    return epoch


def _orders(num_samples: int, batch_size: int) -> list[NDArray[np.int64]]:
    """Return numbers of samples in shuffled orders, each `(num_batches, batch)`."""
    order = TrainOrder(num_samples=num_samples, seed=0, global_batch_size=batch_size)
    return [
        np.stack([order.batch(epoch, each) for each in range(order.num_batches)])
        for epoch in range(_NUM_ORDERS)
    ]


def _written(peer: Loader, samples: NDArray[np.uint8], folder: Path) -> str:
    """Let a peer write all samples; return the problem if it cannot."""
    folder.mkdir()
    part = PeerPart(
        number=0,
        num_samples=len(samples),
        sample_shape=samples.shape[1:],
        items=enumerate(samples),
    )
    try:
        peer.write(part, folder)
        peer.finish(folder, 1)
    except FAULTS as error:
        return failure(error)
    return ""
