"""Reading shuffled batches: from memory, by headrace's loader, by peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
from headrace_bench.contest import FAULTS, BenchOptions, Tick, Variant, compete, failure, for_each
from headrace_bench.laps import Check, Reader, Tuned, read_lap, reading
from headrace_bench.peers.peer import (
    Epoch,
    Loader,
    Pair,
    PeerPart,
    PeerReading,
    missing,
    worker_choices,
)
from headrace_bench.records import BenchRow, BenchTable, Kind, Lap
from headrace_bench.samples import SampleShape, plan_shape, random_samples
from headrace_bench.shards import SAMPLE, SPLIT, write_dataset
from headrace_bench.workspace import remove, workspace

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
    folder: Path, batch_size: int, *, prefetch: bool = True, verify: bool = False
) -> Epoch:
    """Return passes over a dataset by headrace's loader, each shuffled again."""
    dataset = ShardedDataset(folder, SPLIT)
    order = TrainOrder(num_samples=len(dataset), seed=0, global_batch_size=batch_size)
    ahead = DataSpec().prefetch if prefetch else 0
    loader = BatchLoader(dataset, order, prefetch=ahead, reading=Reading(verify=verify))
    epochs = iter(range(2**60))

    def epoch() -> Iterator[Pair]:
        loader.set_epoch(next(epochs))
        for batch in loader:
            yield batch[SAMPLE], batch["label"]

    return epoch


def peer_variant(peer: Loader, folder: Path, reader: Reader, shape: SampleShape) -> Variant:
    """Return a peer that reads what it wrote into `folder`, with the reader's laps."""

    def make(num_workers: int) -> Reader:
        reading = PeerReading(
            folder=folder,
            sample_shape=shape.sample_shape,
            batch_size=shape.batch_size,
            num_workers=num_workers,
        )
        return replace(reader, epoch=peer.open(reading), num_samples=0, skips_start=True)

    tuned = Tuned(worker_choices() if peer.takes_workers else (0,), make, peer.settings)
    return Variant(name=peer.name, kind="peer", lap=tuned.lap, settings=tuned.settings)


def missing_row(peer: Loader, problem: str) -> BenchRow:
    """Return the row of a peer that cannot take part."""
    return BenchRow(name=peer.name, kind="peer", settings=peer.settings, problem=problem)


def _table(options: BenchOptions, size: int, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes, _MAX_WITH_PEERS if options.peers else _MAX)
    needed_bytes = int(1.1 * shape.num_bytes * (2 + len(options.peers)))
    with workspace(options.folder, needed_bytes) as folder:
        tick(f"making {shape.num_samples:,} samples of {shape.sample_bytes:,} bytes")
        samples = random_samples(shape)
        variants = _own_variants(options, shape, samples, folder)
        rows: list[BenchRow] = []
        for peer in options.peers:
            tick(f"writing samples for {peer.name}")
            target = folder / peer.folder
            problem = missing(peer) or _written(peer, samples, target)
            if problem:
                rows.append(missing_row(peer, problem))
                remove(target)
            else:
                reader = reader_of(options, samples, lambda: iter(()))
                variants.append(peer_variant(peer, target, reader, shape))
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
    options: BenchOptions, shape: SampleShape, samples: NDArray[np.uint8], folder: Path
) -> list[Variant]:
    write_dataset(folder / "headrace", samples, shape.sample_bytes)
    limit = reader_of(options, samples, _limit_epoch(samples, shape.batch_size))
    at_once, alone, verified = (
        reader_of(options, samples, loader_epoch(folder / "headrace", shape.batch_size, **how))
        for how in ({}, {"prefetch": False}, {"verify": True})
    )
    mapped = reader_of(options, samples, _mapped_epoch(folder / "headrace", shape.batch_size))
    others: tuple[tuple[str, Kind, Reader, str], ...] = (
        ("limit, mapped shards", "limit", mapped,
         "torch.index_select from the shards, all threads"),
        ("headrace, prefetch off", "headrace", alone, "each batch read at its request"),
        ("headrace, samples verified", "headrace", verified, "data.verify_samples"),
    )  # fmt: skip
    return [
        *(_limit_variant(limit, num_threads) for num_threads in sorted({1, _num_threads()})),
        reading("headrace", "headrace", at_once, "BatchLoader as in training, full shuffle"),
        *(reading(*each, is_yardstick=False) for each in others),
    ]


def _num_threads() -> int:
    return torch.get_num_threads()


def _limit_variant(reader: Reader, num_threads: int) -> Variant:
    """Return the limit; on a busy machine one thread is faster than several, which wait."""

    def lap(is_warm_up: bool) -> Lap:
        before = _num_threads()
        torch.set_num_threads(num_threads)
        try:
            return read_lap(reader, is_warm_up)
        finally:
            torch.set_num_threads(before)

    return Variant(
        name=f"limit, {num_threads} thread{'s' * (num_threads > 1)}",
        kind="limit",
        is_yardstick=True,
        lap=lap,
        settings="torch.index_select",
    )


def reader_of(options: BenchOptions, samples: NDArray[np.uint8], epoch: Epoch) -> Reader:
    """Return a reader of samples `(num_samples, …)` with checks and the options' time of laps."""
    return Reader(
        epoch=epoch,
        lap_s=options.lap_s,
        num_samples=len(samples),
        check=check_against(torch.from_numpy(samples)),
    )


def check_against(samples: Tensor) -> Check:
    """Return a check that compares batches with the samples of their numbers."""

    def check(batch: Tensor, numbers: Tensor) -> bool:
        return torch.equal(batch, samples[numbers])

    return check


def _limit_epoch(samples: NDArray[np.uint8], batch_size: int) -> Epoch:
    source = torch.from_numpy(samples)
    buffer = torch.empty((batch_size, *source.shape[1:]), dtype=source.dtype)
    order = TrainOrder(num_samples=len(samples), seed=0, global_batch_size=batch_size)
    epochs = [
        [torch.from_numpy(order.batch(number, each).copy()) for each in range(order.num_batches)]
        for number in range(_NUM_ORDERS)
    ]
    numbers = iter(range(2**60))

    def epoch() -> Iterator[Pair]:
        for indices in epochs[next(numbers) % _NUM_ORDERS]:
            torch.index_select(source, 0, indices, out=buffer)
            yield buffer, indices

    return epoch


def _mapped_epoch(folder: Path, batch_size: int) -> Epoch:
    """Return the limit from mapped shards: its loss is due to small pages, not to a loader."""
    dataset = ShardedDataset(folder, SPLIT)
    gatherer = Gatherer(dataset)
    infos = [dataset.field(SAMPLE)]
    order = TrainOrder(num_samples=len(dataset), seed=0, global_batch_size=batch_size)
    epochs: list[tuple[Located, Tensor]] = []
    for number in range(_NUM_ORDERS):
        indices = [order.batch(number, each) for each in range(order.num_batches)]
        found = gatherer.find(infos, np.concatenate(indices))
        epochs.append((found, torch.from_numpy(np.stack(indices))))
    numbers = iter(range(2**60))

    def epoch() -> Iterator[Pair]:
        found, indices = epochs[next(numbers) % _NUM_ORDERS]
        for number, these in enumerate(indices):
            start = number * batch_size
            yield gatherer.take(found, start, start + batch_size)[SAMPLE], these

    return epoch


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
