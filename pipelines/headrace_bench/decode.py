"""Reading JPEG images: headrace's loader, its decoder alone, torch's DataLoader over files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from headrace.fields.field_kind import kind_of_encoding
from headrace_bench.contest import BenchOptions, Tick, Variant, compete
from headrace_bench.laps import Reader, Tuned, reading
from headrace_bench.machine import num_cores
from headrace_bench.peers.files import Samples, loader_of
from headrace_bench.peers.peer import Epoch, Pair, PeerReading, worker_choices
from headrace_bench.read import check_against, loader_epoch
from headrace_bench.records import BenchTable
from headrace_bench.shards import write_dataset
from headrace_bench.workspace import workspace

_SIDE = 256
_UNLIKE = 512
"""Images that are encoded; each is there several times if the cores need more."""
_A_CORE = 16
"""Images of a batch for each core, so that no thread is without work."""
_QUALITY = 90
_LONG = 4
"""Factor on the length of laps, relative to other reading: a batch takes long."""


@dataclass(frozen=True, kw_only=True)
class JpegImages:
    """Encoded images, the first `len(decoded)` of them again and again."""

    files: tuple[bytes, ...]
    decoded: NDArray[np.uint8]
    """Their pixels, `(unlike, side, side, 3) uint8`."""

    @property
    def batch_size(self) -> int:
        """Images of a batch: enough for all cores."""
        return min(_A_CORE * max(num_cores(), 2), len(self.files) // 2)


def bench_decode(options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of reading JPEG images; the options' sizes and peers are ignored.

    Raises:
        StorageFullError: The folder has no room.
    """
    with workspace(options.folder, 4 * options.total_bytes) as folder:
        tick("encoding JPEG images")
        images = jpeg_images(options.total_bytes // (_SIDE * _SIDE * 3))
        sample_bytes = max(len(file) for file in images.files)
        write_dataset(folder / "headrace", images.files, sample_bytes)
        (folder / "files").mkdir()
        for number, file in enumerate(images.files):
            (folder / "files" / f"{number:08d}.jpg").write_bytes(file)
        rows = compete(_variants(options, images, folder), options.rounds, tick)
    return (
        BenchTable(
            title=f"read, {len(images.files)} JPEG images of {_SIDE} x {_SIDE} pixels, about "
            f"{sample_bytes:,} bytes, batches of {images.batch_size}",
            rows=tuple(rows),
            notes=(
                "Rates count decoded bytes. Limit: headrace's decoder on bytes in memory, a thread "
                "per core. DataLoader: Pillow, as torchvision's datasets of images use it.",
            ),
        ),
    )


def decode_jpeg(file: Path | io.BytesIO) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file, `(height, width, 3) uint8`."""
    with Image.open(file) as image:
        return np.array(image)


def jpeg_images(count: int) -> JpegImages:
    """Make smooth pictures with noise, which compress about as well as photographs; at least 2."""
    count = max(count, 2)
    random = np.random.default_rng(0)
    files: list[bytes] = []
    for _ in range(min(count, _UNLIKE)):
        coarse = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        smooth = Image.fromarray(coarse).resize((_SIDE, _SIDE), Image.Resampling.BICUBIC)
        noise = random.normal(0, 8, (_SIDE, _SIDE, 3))
        pixels = np.clip(np.asarray(smooth) + noise, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
        files.append(file.getvalue())
    decoded = np.stack([decode_jpeg(io.BytesIO(file)) for file in files])
    return JpegImages(files=tuple(islice(cycle(files), count)), decoded=decoded)


def _variants(options: BenchOptions, images: JpegImages, folder: Path) -> list[Variant]:
    batch_size, num_threads = images.batch_size, num_cores()
    check = check_against(torch.from_numpy(images.decoded))

    def reader(epoch: Epoch, skips_start: bool = False) -> Reader:
        return Reader(
            epoch=epoch,
            lap_s=_LONG * options.lap_s,
            num_samples=len(images.files) // batch_size * batch_size,
            check=lambda batch, numbers: check(batch, numbers % len(images.decoded)),
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
    peer = Tuned(worker_choices(), over_files, "torch DataLoader, full shuffle")
    return [
        reading("limit", "limit", limit, f"decoding alone, {num_threads} threads"),
        reading("headrace", "headrace", headrace, "BatchLoader as in training, full shuffle"),
        Variant(name="DataLoader over files", kind="peer", lap=peer.lap, settings=peer.settings),
    ]


def _limit_epoch(images: JpegImages, batch_size: int, num_threads: int) -> Epoch:
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="bench-decode")
    buffer = torch.empty((batch_size, _SIDE, _SIDE, 3), dtype=torch.uint8)
    pixels, decoder = buffer.numpy(), kind_of_encoding("jpeg")

    def decode(place: int, number: int) -> None:
        pixels[place] = decoder.decode(images.files[number])

    def epoch() -> Iterator[Pair]:
        for start in range(0, len(images.files) - batch_size + 1, batch_size):
            numbers = range(start, start + batch_size)
            for _ in pool.map(decode, range(batch_size), numbers):
                pass
            yield buffer, torch.arange(start, start + batch_size)

    return epoch
