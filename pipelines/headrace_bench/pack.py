"""Packing small files, a process per core: plain concatenation, headrace, peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.shards.dataset import ShardedDataset
from headrace_bench.contest import (
    BenchOptions,
    Measured,
    Tick,
    Variant,
    compete,
    for_each,
    missing_row,
)
from headrace_bench.copying import concatenate, concatenate_bare, list_files
from headrace_bench.laps import Reader, check_epoch
from headrace_bench.machine import num_cores
from headrace_bench.pack_headrace import new_pool, pack_folder, shard_bytes_of
from headrace_bench.peers import Loader, PeerPart
from headrace_bench.read import check_against
from headrace_bench.records import BenchTable
from headrace_bench.samples import (
    SampleShape,
    plan_shape,
    random_samples,
    room_for_files,
    write_files,
)
from headrace_bench.workspace import workspace

_MAX_FILES = 131_072
_CHECKED_AT_ONCE = 128


@dataclass(frozen=True, kw_only=True)
class _Job(Measured):
    """The files to pack, and the processes."""

    pool: ProcessPoolExecutor
    files: tuple[str, ...]
    samples: NDArray[np.uint8]
    shape: SampleShape
    source: Path


def bench_pack(options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return one table per sample size.

    Raises:
        StorageFullError: The folder has no room.
    """
    with new_pool() as pool:
        each = for_each(options.sizes, tick)
        return tuple(_table(options, size, pool, show) for size, show in each)


def write_part(peer: Loader, files: Sequence[str], number: int, folder: Path) -> None:
    """Let a peer write the samples of `.npy` files, numbered by their names; runs in the pool."""
    first = np.load(files[0])
    part = PeerPart(
        number=number,
        num_samples=len(files),
        sample_shape=first.shape,
        items=((int(Path(name).stem), np.load(name)) for name in files),
    )
    peer.write(part, folder)


def _table(options: BenchOptions, size: int, pool: ProcessPoolExecutor, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes, _MAX_FILES)
    with workspace(options.folder, room_for_files(shape)) as folder:
        tick(f"writing {shape.num_samples:,} files of {shape.sample_bytes:,} bytes")
        samples = random_samples(shape)
        files = write_files(samples, folder / "files")
        job = _Job(
            pool=pool,
            files=tuple(map(str, files)),
            samples=samples,
            shape=shape,
            source=folder / "files",
            target=folder / "packed",
            num_samples=shape.num_samples,
            num_bytes=shape.num_bytes,
        )
        packers = [peer for peer in options.peers if peer.packs]
        there = [peer for peer in packers if not peer.missing]
        rows = compete([*_own_variants(job), *_peers(job, there)], options.rounds, tick)
    absent = (missing_row(peer, peer.missing) for peer in packers if peer.missing)
    return BenchTable(
        title=f"pack, {shape.num_samples:,} .npy files of {shape.sample_bytes:,} bytes",
        rows=(*rows, *absent),
        notes=(
            "Limit: the same folder listed, and its files read and written one after another, "
            "without checking them.",
            f"All by {num_cores()} processes. headrace: listing, labels, checks, checksums, "
            "statistics and manifest included; others get the list of files. Processes are "
            "started before the clock starts, for all.",
        ),
    )


def _own_variants(job: _Job) -> Iterator[Variant]:
    how = "listing and concatenation by Python's open, read and write"
    yield job.variant("limit", lambda _: _concatenate(job, concatenate), settings=how)
    yield job.variant(
        "limit",
        lambda _: _concatenate(job, concatenate_bare),
        settings="listing and concatenation by open, fstat, read and close",
        name="limit, bare system calls",
    )
    yield job.variant(
        "headrace",
        lambda _: _pack(job, {}),
        lambda to: check_packed(to, job.samples),
        settings="pack step with the defaults of recipes",
    )
    yield job.variant(
        "headrace",
        lambda _: _pack(job, {"statistics": "none"}),
        settings="pack.statistics: none",
        name="headrace, no statistics",
    )


def _peers(job: _Job, peers: Sequence[Loader]) -> Iterator[Variant]:
    for peer in peers:
        work, check = partial(_pack_by, job, peer), partial(_check_peer, job, peer)
        yield job.variant("peer", work, check, settings=peer.settings, name=peer.name)


def _shares(files: Sequence[str]) -> list[Sequence[str]]:
    """Return the files of each process: one piece of the list each."""
    ends = [len(files) * n // num_cores() for n in range(num_cores() + 1)]
    return [files[a:b] for a, b in pairwise(ends)]


def _concatenate(job: _Job, work: Callable[[Sequence[str], str], int]) -> None:
    targets = [str(job.target / f"{number}") for number in range(num_cores())]
    for _ in job.pool.map(work, _shares(list_files(job.source)), targets):
        pass


def _pack(job: _Job, options: dict[str, str]) -> None:
    shard_bytes = shard_bytes_of(job.shape.num_bytes, job.shape.sample_bytes)
    pack_folder(job.source, job.target, job.pool, shard_bytes, options)


def _pack_by(job: _Job, peer: Loader, target: Path) -> None:
    peers, numbers, targets = [peer] * num_cores(), range(num_cores()), [target] * num_cores()
    for _ in job.pool.map(write_part, peers, _shares(job.files), numbers, targets):
        pass
    peer.finish(target, num_cores())


def check_packed(target: Path, samples: NDArray[np.uint8]) -> None:
    """Compare headrace's dataset with the written samples.

    Args:
        target: Folder of the site.
        samples: `(num_samples, side, side, 3)`, each in a file named by its number.

    Raises:
        ValueError: Samples are missing or differ.
    """
    (manifest,) = target.glob("datasets/*/manifest.json")
    dataset = ShardedDataset(manifest.parent, "train")
    numbers = [int(Path(path).stem) for path in dataset.sources(np.arange(len(dataset)))]
    if sorted(numbers) != list(range(len(samples))):
        raise ValueError(f"{len(set(numbers))} samples of {len(samples)} were packed")
    for start in range(0, len(dataset), _CHECKED_AT_ONCE):
        places = np.arange(start, min(start + _CHECKED_AT_ONCE, len(dataset)))
        batch = dataset.gather(dataset.manifest.fields[0].name, places)
        if not np.array_equal(batch, samples[[numbers[place] for place in places]]):
            raise ValueError("a sample was not packed as it is")


def _check_peer(job: _Job, peer: Loader, target: Path) -> None:
    shape = job.shape
    check_epoch(
        Reader(
            epoch=peer.open(target, shape, 0),
            lap_s=0.0,
            num_samples=shape.num_samples - shape.batch_size + 1,
            check=check_against(torch.from_numpy(job.samples)),
        )
    )
