"""Reading JPEG images: headrace's loader against torch's DataLoader over files, same decoder."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from headrace_bench.contest import BenchOptions, Tick, Variant, compete
from headrace_bench.laps import Reader, Tuned, reading
from headrace_bench.peers.files import Samples, loader_of
from headrace_bench.peers.peer import Epoch, Pair, PeerReading
from headrace_bench.read import check_against, loader_epoch
from headrace_bench.records import BenchTable
from headrace_bench.shards import write_dataset
from headrace_bench.workspace import workspace

_SIDE = 256
_MAX_IMAGES = 1024
_BATCH_SIZE = 32
_QUALITY = 90
_LONG = 4
"""Factor on the length of laps, relative to other reading: a batch takes long."""


@dataclass(frozen=True, kw_only=True)
class _Images:
    files: tuple[bytes, ...]
    decoded: NDArray[np.uint8]


def bench_decode(options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of reading JPEG images; the options' sizes and peers are ignored.

    Raises:
        StorageFullError: The folder has no room.
    """
    with workspace(options.folder, 4 * options.total_bytes) as folder:
        tick("encoding JPEG images")
        images = _make(options.total_bytes)
        sample_bytes = max(len(file) for file in images.files)
        write_dataset(folder / "headrace", images.files, sample_bytes)
        (folder / "files").mkdir()
        for number, file in enumerate(images.files):
            (folder / "files" / f"{number:08d}.jpg").write_bytes(file)
        rows = compete(_variants(options, images, folder), options.rounds, tick)
    return (
        BenchTable(
            title=f"read, {len(images.files)} JPEG images of {_SIDE} x {_SIDE} pixels, about "
            f"{sample_bytes:,} bytes, decoded by Pillow, batches of {_BATCH_SIZE}",
            rows=tuple(rows),
            notes=("Rates count decoded bytes. Limit: Pillow on bytes in memory, in threads.",),
        ),
    )


def decode_jpeg(file: Path | io.BytesIO) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file, `(height, width, 3) uint8`."""
    with Image.open(file) as image:
        return np.array(image)


def _make(total_bytes: int) -> _Images:
    """Make smooth pictures with noise, which compress about as well as photographs."""
    count = max(min(_MAX_IMAGES, total_bytes // (_SIDE * _SIDE * 3)), 2)
    random = np.random.default_rng(0)
    files: list[bytes] = []
    for _ in range(count):
        coarse = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
        noise = random.normal(0, 8, (_SIDE, _SIDE, 3))
        pixels = np.clip(np.asarray(smooth) + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
        files.append(file.getvalue())
    decoded = np.stack([decode_jpeg(io.BytesIO(file)) for file in files])
    return _Images(files=tuple(files), decoded=decoded)


def _variants(options: BenchOptions, images: _Images, folder: Path) -> list[Variant]:
    batch_size = min(_BATCH_SIZE, len(images.files) // 2)
    num_threads = len(os.sched_getaffinity(0))

    def reader(epoch: Epoch, skips_start: bool = False) -> Reader:
        return Reader(
            epoch=epoch,
            lap_s=_LONG * options.lap_s,
            num_samples=len(images.files) // batch_size * batch_size,
            check=check_against(torch.from_numpy(images.decoded)),
            skips_start=skips_start,
        )

    def over_files(num_workers: int) -> Reader:
        files = PeerReading(
            folder=folder / "files",
            sample_shape=(_SIDE, _SIDE, 3),
            batch_size=batch_size,
            num_workers=num_workers,
        )
        paths = sorted(files.folder.glob("*.jpg"))
        return reader(loader_of(Samples(paths, decode_jpeg), files), skips_start=True)

    limit = reader(_limit_epoch(images, batch_size, num_threads))
    headrace = reader(loader_epoch(folder / "headrace", batch_size))
    peer = Tuned((0, num_threads), over_files, "torch DataLoader, full shuffle")
    return [
        reading("limit", "limit", limit, f"decoding alone, {num_threads} threads"),
        reading("headrace", "headrace", headrace, "BatchLoader as in training, full shuffle"),
        Variant(name="DataLoader over files", kind="peer", lap=peer.lap, settings=peer.settings),
    ]


def _limit_epoch(images: _Images, batch_size: int, num_threads: int) -> Epoch:
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="bench-decode")
    buffer = torch.empty((batch_size, _SIDE, _SIDE, 3), dtype=torch.uint8)
    pixels = buffer.numpy()

    def decode(place: int, number: int) -> None:
        pixels[place] = decode_jpeg(io.BytesIO(images.files[number]))

    def epoch() -> Iterator[Pair]:
        for start in range(0, len(images.files) - batch_size + 1, batch_size):
            numbers = range(start, start + batch_size)
            for _ in pool.map(decode, range(batch_size), numbers):
                pass
            yield buffer, torch.arange(start, start + batch_size)

    return epoch
