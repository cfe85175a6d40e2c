"""Staging a dataset: by sendfile, by headrace, by `cp -r` and `rsync`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from pydantic import ByteSize

from headrace.files.checksums import file_xxh3_128
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import read_manifest
from headrace.files.tiers import bytes_in
from headrace.recipe.site import StoreOptions, Tier
from headrace.staging.staged import ensure_staged
from headrace.staging.tier_choice import StagingOptions
from headrace_bench.contest import BenchOptions, Measured, Tick, Variant, compete
from headrace_bench.copying import sendfile_tree
from headrace_bench.machine import num_cores
from headrace_bench.records import BenchRow, BenchTable
from headrace_bench.samples import plan_shape, random_samples
from headrace_bench.shards import SHARD_BYTES, write_dataset
from headrace_bench.workspace import workspace

_SAMPLE_BYTES = 110_592
_COMMANDS = {"cp -r": ("cp", "-r"), "rsync -aW": ("rsync", "-aW")}


def bench_stage(place: Path, options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of staging a dataset, which is made in `place` and is in the page cache.

    Raises:
        StorageFullError: A folder has no room.
    """
    room = dataset_room(options)
    commands = _COMMANDS if options.peers else {"cp -r": _COMMANDS["cp -r"]}
    there = {name: words for name, words in commands.items() if shutil.which(words[0])}
    with workspace(place, room) as source, workspace(options.folder, room) as to:
        manifest, dataset = make_dataset(options, source, tick)
        rows = compete([*_variants(dataset, to / "copy", there)], options.rounds, tick)
    absent = (
        BenchRow(name=name, kind="peer", problem=f"not installed: no {words[0]} on the PATH")
        for name, words in commands.items()
        if name not in there
    )
    return (
        BenchTable(
            title=f"stage, {size_of(manifest)}, {place} to {options.folder}",
            rows=(*rows, *absent),
            notes=("headrace computes checksums of all bytes while it copies; the others do not.",),
        ),
    )


def make_dataset(options: BenchOptions, folder: Path, tick: Tick) -> tuple[Manifest, Path]:
    """Write a dataset in a new folder `dataset` of a folder; return its manifest and place."""
    tick("making a dataset")
    shape = plan_shape(_SAMPLE_BYTES, options.total_bytes)
    dataset = folder / "dataset"
    return write_dataset(dataset, random_samples(shape), shape.sample_bytes), dataset


def dataset_room(options: BenchOptions) -> int:
    """Return the bytes that the dataset, or a copy, takes at most."""
    return int(1.1 * options.total_bytes) + SHARD_BYTES


def size_of(manifest: Manifest) -> str:
    """Return the size of a dataset for a title."""
    return f"{len(manifest.shards)} shards, {manifest.num_bytes:,} bytes"


def check_copied(dataset: Path, target: Path) -> None:
    """Compare the copied shards, at any path in `target`, with the dataset's.

    Raises:
        ValueError: A shard is missing or differs.
    """
    for shard in read_manifest(dataset).shards:
        copies = [path for path in target.rglob(Path(shard.file).name) if path.is_file()]
        if len(copies) != 1 or file_xxh3_128(copies[0]) != shard.xxh3_128:
            raise ValueError(f"{shard.file} was not copied as it is")


def stage_to(source: Path | str, s3: StoreOptions | None, target: Path) -> None:
    """Stage a dataset into a tier of one folder."""
    tier = Tier(name="bench", folder=str(target), reserve=ByteSize(0))
    ensure_staged(source, [tier], options=StagingOptions(s3=s3))


def _variants(
    dataset: Path, target: Path, commands: Mapping[str, tuple[str, ...]]
) -> Iterator[Variant]:
    num_threads, check = num_cores(), partial(check_copied, dataset)
    num_bytes = bytes_in(dataset / "shards")
    job = Measured(
        target=target, num_samples=read_manifest(dataset).num_samples, num_bytes=num_bytes
    )
    yield job.variant(
        "limit",
        lambda to: sendfile_tree(dataset, to / "copy", num_threads),
        check,
        settings=f"sendfile, {num_threads} threads",
    )
    how = "as in a stage step, verified"
    yield job.variant("headrace", partial(stage_to, dataset, None), check, settings=how)
    for name, words in commands.items():
        command = (*words, str(dataset))
        yield job.variant("peer", partial(_run, command), check, name=name)


def _run(command: tuple[str, ...], target: Path) -> None:
    subprocess.run([*command, str(target)], check=True)
