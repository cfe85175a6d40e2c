"""Packing from S3, staging from S3 and uploads to S3, against `rclone copy` of the same objects."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from headrace.errors import UnknownNameError
from headrace.files.manifest import Manifest
from headrace.files.tiers import bytes_in
from headrace.objects.store import open_store
from headrace.recipe.site import StoreOptions
from headrace_bench.contest import BenchOptions, Measured, Tick, Variant, compete, for_each
from headrace_bench.machine import num_cores
from headrace_bench.pack import check_packed
from headrace_bench.pack_headrace import new_pool, pack_folder, shard_bytes_of
from headrace_bench.rclone import (
    CONCURRENCY,
    DEFAULTS,
    RcloneServer,
    credentials,
    find_rclone,
    serving,
)
from headrace_bench.records import BenchTable
from headrace_bench.samples import plan_shape, random_samples, room_for_files, write_files
from headrace_bench.stage import check_copied, dataset_room, make_dataset, size_of, stage_to
from headrace_bench.workspace import workspace

Work = Literal["pack", "stage", "upload"]
WORK: tuple[Work, ...] = get_args(Work)
"""Kinds of work."""

_MAX_FILES = 16_384

Copy = Callable[[Path], None]
"""Does the work once; the folder is empty and gets the result."""

RcloneCopy = Callable[[Path, tuple[str, ...]], None]
"""Copies by rclone with options."""


@dataclass(frozen=True, kw_only=True)
class _Job(Measured):
    """Work of one table."""

    def variants(
        self, work: Copy, check: Copy, rclone: RcloneCopy, peers: Collection[object]
    ) -> list[Variant]:
        """Return rclone at its best, headrace's work with its check, and rclone without options."""
        how = f"rclone copy, {CONCURRENCY} transfers, no checksums"
        plain = "default options: 4 transfers, checksums"
        found = [
            self.variant("limit", lambda to: rclone(to, ()), self._check_size, settings=how),
            self.variant("headrace", work, check),
            self.variant(
                "peer",
                lambda to: rclone(to, DEFAULTS),
                self._check_size,
                settings=plain,
                name="rclone copy",
            ),
        ]
        return found if peers else found[:2]

    def _check_size(self, target: Path) -> None:
        """Raise a `ValueError` if bytes are missing: rclone accepts a prefix without objects."""
        if (found := bytes_in(target)) < self.num_bytes:
            raise ValueError(f"{found:,} bytes of {self.num_bytes:,} were copied")


def bench_s3(work: Collection[Work], options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return one table per sample size for packing, one for staging, one for uploads.

    Raises:
        UserError: rclone is not installed.
        StorageFullError: The folder has no room.
    """
    find_rclone()
    tables: list[BenchTable] = []
    with credentials(), new_pool() as pool:
        if "pack" in work:
            each = for_each(options.sizes, tick)
            tables += [_pack(options, size, pool, show) for size, show in each]
        if "stage" in work:
            tables.append(_stage(options, tick))
        if "upload" in work:
            tables.append(_upload(options, pool, tick))
    return tuple(tables)


def known_work(text: str) -> tuple[Work, ...]:
    """Return kinds of work from their names, separated by commas.

    Raises:
        UnknownNameError: A name is not known.
    """
    for name in text.split(","):
        if name not in WORK:
            raise UnknownNameError(f"--work '{name}' is not known", f"Valid: {', '.join(WORK)}.")
    return tuple(work for work in WORK if work in text.split(","))


def upload_shard(shard: str, url: str, options: StoreOptions, path: str) -> None:
    """Upload a shard to a prefix; runs in a process of the pool."""
    open_store(url, options).upload(Path(shard), path)


def _pack(options: BenchOptions, size: int, pool: ProcessPoolExecutor, tick: Tick) -> BenchTable:
    shape = plan_shape(size, options.total_bytes, _MAX_FILES)
    with workspace(options.folder, room_for_files(shape)) as folder:
        tick(f"writing {shape.num_samples:,} files of {shape.sample_bytes:,} bytes")
        samples = random_samples(shape)
        write_files(samples, folder / "served" / "bench" / "files")
        with serving(folder / "served") as server:
            s3 = server.options(num_cores())
            shard_bytes = shard_bytes_of(shape.num_bytes, shape.sample_bytes)

            def pack(target: Path) -> None:
                pack_folder(server.url("files"), target, pool, shard_bytes, {}, s3)

            def check(target: Path) -> None:
                check_packed(target, samples)

            job = _Job(
                target=folder / "packed", num_samples=len(samples), num_bytes=shape.num_bytes
            )
            variants = job.variants(pack, check, _download(server, "files"), options.peers)
            rows = compete(variants, options.rounds, tick)
    return BenchTable(
        title=f"pack from S3, {shape.num_samples:,} .npy objects of {shape.sample_bytes:,} bytes",
        rows=rows,
        notes=(
            f"headrace: {num_cores()} processes with {s3.connections} requests each; listing, "
            "labels, versions, checksums, statistics and manifest included. rclone starts on the "
            "clock. The server runs on the same cores.",
        ),
    )


def _stage(options: BenchOptions, tick: Tick) -> BenchTable:
    with workspace(options.folder, 2 * dataset_room(options)) as folder:
        manifest, dataset = make_dataset(options, folder / "served" / "bench", tick)
        with serving(folder / "served") as server:
            stage = partial(stage_to, server.url("dataset"), server.options())
            job = _job(folder / "copy", manifest)
            check, rclone = partial(check_copied, dataset), _download(server, "dataset")
            variants = job.variants(stage, check, rclone, options.peers)
            rows = compete(variants, options.rounds, tick)
    note = "headrace compares the checksum of every byte with the manifest's."
    return BenchTable(title=f"stage from S3, {size_of(manifest)}", rows=rows, notes=(note,))


def _upload(options: BenchOptions, pool: ProcessPoolExecutor, tick: Tick) -> BenchTable:
    with workspace(options.folder, 2 * dataset_room(options)) as folder:
        manifest, dataset = make_dataset(options, folder, tick)
        with serving(folder / "served") as server:
            s3, numbers = server.options(num_cores()), count()

            def fresh() -> str:  # the server remembers the content of its folders
                return f"taken/{next(numbers)}"

            def upload(_: Path) -> None:
                url = server.url(fresh())
                sent = [
                    pool.submit(upload_shard, str(dataset / shard.file), url, s3, shard.file)
                    for shard in manifest.shards
                ]
                for each in sent:
                    each.result()

            def rclone(_: Path, flags: tuple[str, ...]) -> None:
                server.copy(str(dataset), server.remote(fresh()), flags)

            job = _job(server.folder / "taken", manifest)
            variants = job.variants(upload, partial(check_copied, dataset), rclone, options.peers)
            rows = compete(variants, options.rounds, tick)
    note = (
        f"headrace: as with pack.target, {num_cores()} processes, in parts that are each "
        "signed with their SHA-256."
    )
    return BenchTable(title=f"upload to S3, {size_of(manifest)}", rows=rows, notes=(note,))


def _download(server: RcloneServer, prefix: str) -> RcloneCopy:
    return lambda target, flags: server.copy(server.remote(prefix), str(target), flags)


def _job(target: Path, manifest: Manifest) -> _Job:
    return _Job(target=target, num_samples=manifest.num_samples, num_bytes=manifest.num_bytes)
