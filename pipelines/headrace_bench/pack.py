"""Packing small files, a process per core: plain concatenation, headrace, peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.shards.dataset import ShardedDataset
from headrace_bench.contest import BenchOptions, Measured, Tick, Variant, compete, for_each
from headrace_bench.copying import concatenate, concatenate_bare, list_files
from headrace_bench.laps import Reader, check_epoch
from headrace_bench.machine import num_cores
from headrace_bench.pack_headrace import new_pool, pack_folder, shard_bytes_of
from headrace_bench.peers.peer import Loader, PeerPart, PeerReading, load, missing
from headrace_bench.read import check_against, missing_row
from headrace_bench.records import BenchRow, BenchTable
from headrace_bench.samples import SampleShape, plan_shape, random_samples, write_files
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


def write_part(module: str, files: Sequence[str], number: int, folder: str) -> None:
    """Let a peer write the samples of `.npy` files, numbered by their names; runs in the pool."""
    first = np.load(files[0])
    part = PeerPart(
        number=number,
        num_samples=len(files),
        sample_shape=first.shape,
        items=((int(Path(name).stem), np.load(name)) for name in files),
    )
    load(module).write(part, Path(folder))


def _table(options: BenchOptions, size: int, pool: ProcessPoolExecutor, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes, _MAX_FILES)
    needed_bytes = 3 * shape.num_bytes + 2 * 4096 * shape.num_samples
    with workspace(options.folder, needed_bytes) as folder:
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
        there = [peer for peer in packers if not missing(peer)]
        rows: list[BenchRow] = compete(_variants(job, there), options.rounds, tick)
        rows += [missing_row(peer, missing(peer)) for peer in packers if missing(peer)]
    return BenchTable(
        title=f"pack, {shape.num_samples:,} .npy files of {shape.sample_bytes:,} bytes",
        rows=tuple(rows),
        notes=(
            "Limit: the same folder listed, and its files read and written one after another, "
            "without checking them.",
            f"All by {num_cores()} processes. headrace: listing, labels, checks, checksums, "
            "statistics and manifest included; others get the list of files. Processes are "
            "started before the clock starts, for all.",
        ),
    )


def _variants(job: _Job, peers: Sequence[Loader]) -> list[Variant]:
    return [
        Variant(
            name="limit",
            kind="limit",
            is_yardstick=True,
            lap=job.lap(lambda _: _concatenate(job, concatenate)),
            settings="listing and concatenation by Python's open, read and write",
        ),
        Variant(
            name="limit, bare system calls",
            kind="limit",
            lap=job.lap(lambda _: _concatenate(job, concatenate_bare)),
            settings="listing and concatenation by open, fstat, read and close",
        ),
        Variant(
            name="headrace",
            kind="headrace",
            is_yardstick=True,
            lap=job.lap(lambda _: _pack(job, {}), lambda to: check_packed(to, job.samples)),
            settings="pack step with the defaults of recipes",
        ),
        Variant(
            name="headrace, no statistics",
            kind="headrace",
            lap=job.lap(lambda _: _pack(job, {"statistics": "none"})),
            settings="pack.statistics: none",
        ),
        *(_peer_variant(job, peer) for peer in peers),
    ]


def _peer_variant(job: _Job, peer: Loader) -> Variant:
    lap = job.lap(lambda _: _pack_by(job, peer), lambda _: _check_peer(job, peer))
    return Variant(name=peer.name, kind="peer", lap=lap, settings=peer.settings)


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


def _pack_by(job: _Job, peer: Loader) -> None:
    numbers = range(num_cores())
    modules, folders = [peer.folder] * len(numbers), [str(job.target)] * len(numbers)
    for _ in job.pool.map(write_part, modules, _shares(job.files), numbers, folders):
        pass
    peer.finish(job.target, num_cores())


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


def _check_peer(job: _Job, peer: Loader) -> None:
    reading = PeerReading(
        folder=job.target,
        sample_shape=job.shape.sample_shape,
        batch_size=job.shape.batch_size,
        num_workers=0,
    )
    check_epoch(
        Reader(
            epoch=peer.open(reading),
            lap_s=0.0,
            num_samples=job.shape.num_samples - job.shape.batch_size + 1,
            check=check_against(torch.from_numpy(job.samples)),
        )
    )
