"""Staging a dataset: by sendfile, by headrace, by `cp -r` and `rsync`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ByteSize

from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest_file import read_manifest
from headrace.files.tiers import bytes_in
from headrace.recipe.site import Tier
from headrace.staging.staged import ensure_staged
from headrace_bench.contest import BenchOptions, Measured, Tick, Variant, compete
from headrace_bench.copying import sendfile_tree
from headrace_bench.machine import num_cores
from headrace_bench.records import BenchRow, BenchTable, Lap
from headrace_bench.samples import plan_shape, random_samples
from headrace_bench.shards import SHARD_BYTES, write_dataset
from headrace_bench.workspace import workspace

_SAMPLE_BYTES = 110_592
_COMMANDS = {"cp -r": ("cp", "-r"), "rsync -aW": ("rsync", "-aW")}


Copy = Callable[[Path, Path], None]
"""Copies a dataset `(source, target)`; `target` is an empty folder."""


def bench_stage(place: Path, options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of staging a dataset, which is made in `place` and is in the page cache.

    Raises:
        StorageFullError: A folder has no room.
    """
    num_bytes = int(1.1 * options.total_bytes) + SHARD_BYTES
    with workspace(place, num_bytes) as source, workspace(options.folder, num_bytes) as to:
        tick("making a dataset")
        dataset = source / "dataset"
        shape = plan_shape(_SAMPLE_BYTES, options.total_bytes)
        manifest = write_dataset(dataset, random_samples(shape), shape.sample_bytes)
        names = tuple(_COMMANDS) if options.peers else tuple(_COMMANDS)[:1]
        variants = _variants(dataset, to / "copy", names)
        rows = [*compete(variants, options.rounds, tick), *_missing(names)]
    return (
        BenchTable(
            title=f"stage, {len(manifest.shards)} shards, {manifest.num_bytes:,} bytes, "
            f"{place} to {options.folder}",
            rows=tuple(rows),
            notes=("headrace computes checksums of all bytes while it copies; the others do not.",),
        ),
    )


def _variants(dataset: Path, target: Path, names: Sequence[str]) -> list[Variant]:
    num_threads = num_cores()
    job = Measured(
        target=target,
        num_samples=read_manifest(dataset).num_samples,
        num_bytes=bytes_in(dataset / "shards"),
    )

    def lap(copy: Copy) -> Callable[[bool], Lap]:
        return job.lap(lambda to: copy(dataset, to), lambda to: check_copied(dataset, to))

    limit = Variant(
        name="limit",
        kind="limit",
        is_yardstick=True,
        lap=lap(lambda source, to: sendfile_tree(source, to / "copy", num_threads)),
        settings=f"sendfile, {num_threads} threads",
    )
    headrace = Variant(
        name="headrace",
        kind="headrace",
        is_yardstick=True,
        lap=lap(_staged),
        settings="as in a stage step, verified",
    )
    others = [
        Variant(name=name, kind="peer", lap=lap(_command(name)))
        for name in names
        if shutil.which(_COMMANDS[name][0])
    ]
    return [limit, headrace, *others]


def _missing(names: Sequence[str]) -> list[BenchRow]:
    return [
        BenchRow(
            name=name, kind="peer", problem=f"not installed: no {_COMMANDS[name][0]} on the PATH"
        )
        for name in names
        if not shutil.which(_COMMANDS[name][0])
    ]


def check_copied(dataset: Path, target: Path) -> None:
    """Compare the copied shards, at any path in `target`, with the dataset's.

    Raises:
        ValueError: A shard is missing or differs.
    """
    for shard in read_manifest(dataset).shards:
        copies = [path for path in target.rglob(Path(shard.file).name) if path.is_file()]
        if len(copies) != 1 or file_xxh3_128(copies[0]) != shard.xxh3_128:
            raise ValueError(f"{shard.file} was not copied as it is")


def _staged(dataset: Path, target: Path) -> None:
    ensure_staged(dataset, [Tier(name="bench", folder=str(target), reserve=ByteSize(0))])


def _command(name: str) -> Copy:
    def copy(dataset: Path, target: Path) -> None:
        subprocess.run([*_COMMANDS[name], str(dataset), str(target)], check=True)

    return copy
