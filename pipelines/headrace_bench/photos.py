"""Reading JPEG files: whole pictures, and random crops of photographs as ImageNet is trained.

With a GPU a ResNet-50 is trained on the crops; without one they are only read, because the network
would take nearly all of the time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random, random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from headrace.data.dataset import Reading
from headrace.data.transforms import RandomResizedCrop
from headrace.fields.field_kind import kind_of_encoding
from headrace_bench.contest import FAULTS, BenchOptions, Tick, Variant, compete, failure
from headrace_bench.laps import Check, Reader, Tuned
from headrace_bench.machine import num_cores
from headrace_bench.peers import Epoch, Pair, Samples, loader_of, worker_choices
from headrace_bench.read import check_against, loader_epoch
from headrace_bench.records import BenchTable
from headrace_bench.shards import write_dataset
from headrace_bench.workspace import workspace

Range = tuple[int, int]

_BYTES = 150_000
"""Of the largest photographs; on average they have 110 KB, as in ImageNet."""
_WIDTHS, _HEIGHTS = (460, 541), (330, 421)
_QUALITY, _NOISE = 90, 21.0
_TINTS, _VARIATION = (60, 196), 30
"""Colours of photographs on average, and how much they vary inside one."""
_TOLERANCE = 60
"""Most difference between the average colours of a photograph and of a crop."""

SIDE = 256
"""Height and width of pictures that are read whole."""
_SIDES, _LESS_NOISE = (SIDE, SIDE + 1), 8.0
_UNLIKE = 512
"""Pictures that are made; each is there several times if the cores need more."""
_A_CORE = 16
"""Pictures of a batch for each core, so that no thread is without work."""
_LONG = 4
"""Factor on the length of laps, relative to other reading: a batch takes long."""


@dataclass(frozen=True, kw_only=True)
class PhotoOptions:
    """What is read, and how often."""

    size: int = 224
    """Height and width of crops."""
    batch_size: int = 32
    """Samples of a batch."""
    unlike: int = 256
    """Photographs; a dataset holds each once for each core, so that epochs are not too short."""
    rounds: int = 3
    lap_s: float = 1.0
    """Least time of a lap, seconds."""
    folder: Path
    """Folder for files."""


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """Photographs made for the benchmark."""

    files: tuple[bytes, ...]
    tints: Tensor
    """Colour of each on average, `(num_photographs, 3)`."""

    def repeated(self, count: int) -> list[bytes]:
        """Return so many files: these, again and again."""
        return [self.files[number % len(self.files)] for number in range(count)]


def bench_decode(options: BenchOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of whole pictures; the options' sizes and peers are ignored.

    Raises:
        StorageFullError: The folder has no room.
    """
    count = max(options.total_bytes // (SIDE * SIDE * 3), 2)
    with workspace(options.folder, 4 * options.total_bytes) as folder:
        tick("encoding JPEG images")
        files = square_pictures(min(count, _UNLIKE)).repeated(count)
        sample_bytes = _write(folder, files)
        batch_size = decode_batch(count)
        pixels = np.stack([decode_jpeg(io.BytesIO(file)) for file in files[:_UNLIKE]])
        same = check_against(torch.from_numpy(pixels))
        reader = Reader(
            epoch=_limit_epoch(files, batch_size),
            lap_s=_LONG * options.lap_s,
            num_samples=count // batch_size * batch_size,
            check=lambda batch, numbers: same(batch, numbers % len(pixels)),
        )
        settings = "BatchLoader as in training, full shuffle"
        variants = [
            reader.variant("limit", f"decoding alone, {num_cores()} threads"),
            reader.by(loader_epoch(folder / "headrace", batch_size)).variant("headrace", settings),
            _over_files(reader, folder, decode_jpeg, batch_size, "torch DataLoader, full shuffle"),
        ]
        rows = compete(variants, options.rounds, tick)
    return (
        BenchTable(
            title=f"read, {count} JPEG images of {SIDE} x {SIDE} pixels, about "
            f"{sample_bytes:,} bytes, batches of {batch_size}",
            rows=rows,
            notes=(
                "Rates count decoded bytes. Limit: headrace's decoder on bytes in memory, a thread "
                "per core. DataLoader: Pillow, as torchvision's datasets of images use it.",
            ),
        ),
    )


def bench_photos(options: PhotoOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of photographs.

    Raises:
        StorageFullError: The folder has no room.
    """
    count, size = max(options.unlike * num_cores(), 2 * options.batch_size), options.size
    used = trained if torch.cuda.is_available() else lambda epoch: epoch
    with workspace(options.folder, 2 * count * _BYTES) as folder:
        tick("making photographs")
        made = make_photographs(options.unlike)
        _write(folder, made.repeated(count))
        reader = Reader(
            epoch=used(photo_epoch(folder / "headrace", options)),
            lap_s=options.lap_s,
            num_samples=count // options.batch_size * options.batch_size,
            check=_has_tints(made.tints),
        )
        library, crop = _peer(size)
        how = f"torch DataLoader, {library}, full shuffle"
        variants = [
            reader.variant("headrace", "BatchLoader as in training, RandomResizedCrop"),
            _over_files(reader, folder, crop, options.batch_size, how, used),
        ]
        rows = compete(variants, options.rounds, tick)
    done = "ResNet-50 trained in bf16" if torch.cuda.is_available() else "read, without a network"
    mean_bytes = sum(map(len, made.files)) // options.unlike
    return (
        BenchTable(
            title=f"photographs, {done}, {count:,} of about {mean_bytes:,} bytes, crops of "
            f"{size} x {size}, batches of {options.batch_size}",
            rows=rows,
            notes=("Rates count the bytes of crops. Goal: 1.5 of the peer.",),
        ),
    )


def decode_batch(num_pictures: int) -> int:
    """Return the pictures of a batch that is decoded: enough for all cores."""
    return min(_A_CORE * max(num_cores(), 2), num_pictures // 2)


def decode_jpeg(file: Path | io.BytesIO) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file, `(height, width, 3) uint8`."""
    with Image.open(file) as image:
        return np.array(image)


def square_pictures(count: int) -> Photographs:
    """Make pictures of one size, `SIDE`, which compress about as well as photographs."""
    return make_photographs(count, _SIDES, _SIDES, _LESS_NOISE)


def make_photographs(
    count: int, widths: Range = _WIDTHS, heights: Range = _HEIGHTS, noise: float = _NOISE
) -> Photographs:
    """Make photographs, of ImageNet's sizes by default: smooth, with noise, of unlike colours."""
    rng = np.random.default_rng(0)
    tints = rng.integers(*_TINTS, (count, 3))
    files: list[bytes] = []
    for number, tint in enumerate(tints):
        sides = int(rng.integers(*widths)), int(rng.integers(*heights))
        coarse = (tint + rng.integers(-_VARIATION, _VARIATION, (12, 16, 3))).astype(np.uint8)
        smooth = Image.fromarray(coarse).resize(
            sides if number % 4 else sides[::-1], Image.Resampling.BICUBIC
        )
        grain = rng.standard_normal((smooth.height, smooth.width, 3), np.float32) * noise
        pixels = np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
        files.append(file.getvalue())
    return Photographs(files=tuple(files), tints=torch.from_numpy(tints))


def photo_epoch(folder: Path, options: PhotoOptions) -> Epoch:
    """Return passes over a dataset of photographs, each with other random crops."""
    crops = Reading(transforms=(RandomResizedCrop(size=options.size),))
    return loader_epoch(folder, options.batch_size, crops)


def _write(folder: Path, files: Sequence[bytes]) -> int:
    """Write a dataset and single files; return the bytes of the largest."""
    largest = max(map(len, files))
    write_dataset(folder / "headrace", files, largest)
    (folder / "files").mkdir()
    for number, file in enumerate(files):
        (folder / "files" / f"{number:08d}.jpg").write_bytes(file)
    return largest


def _over_files(
    reader: Reader,
    folder: Path,
    read: Callable[[Path], NDArray[np.uint8]],
    batch_size: int,
    settings: str,
    used: Callable[[Epoch], Epoch] = lambda epoch: epoch,
) -> Variant:
    """Return torch's DataLoader over single files; `used` is what is done with its batches."""
    samples = Samples(sorted((folder / "files").glob("*.jpg")), read)
    epoch_by = lambda workers: used(loader_of(samples, batch_size, workers))  # noqa: E731
    return Tuned(reader, epoch_by, worker_choices(), settings).variant("DataLoader over files")


def _has_tints(tints: Tensor) -> Check:
    def check(crops: Tensor, numbers: Tensor) -> bool:
        colours = crops.float().mean(dim=(1, 2))
        return bool((colours - tints[numbers % len(tints)]).abs().max() < _TOLERANCE)

    return check


def _limit_epoch(files: Sequence[bytes], batch_size: int) -> Epoch:
    pool = ThreadPoolExecutor(num_cores(), thread_name_prefix="bench-decode")
    buffer = torch.empty((batch_size, SIDE, SIDE, 3), dtype=torch.uint8)
    pixels, decoder = buffer.numpy(), kind_of_encoding("jpeg")

    def decode(place: int, number: int) -> None:
        pixels[place] = decoder.decode(files[number])

    def epoch() -> Iterator[Pair]:
        for start in range(0, len(files) - batch_size + 1, batch_size):
            numbers = range(start, start + batch_size)
            for _ in pool.map(decode, range(batch_size), numbers):
                pass
            yield buffer, torch.arange(start, start + batch_size)

    return epoch


class _Peer:
    """Reads a file as a training with torchvision does; Pillow alone if that cannot be imported."""

    def __init__(self, size: int, transform: object) -> None:
        self._crop, self._transform = RandomResizedCrop(size=size), transform

    def __call__(self, file: Path) -> NDArray[np.uint8]:
        image = Image.open(file).convert("RGB")
        if callable(self._transform):
            return np.array(self._transform(image))
        top, left, bottom, right = self._crop.box(Random(), image.height, image.width)
        sides = self._crop.size, self._crop.size
        image = image.crop((left, top, right, bottom)).resize(sides, Image.Resampling.BILINEAR)
        if random() < self._crop.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image)


def _peer(size: int) -> tuple[str, _Peer]:
    """Return what crops for the peer, and its name."""
    try:
        from torchvision import transforms
    except FAULTS as error:  # an own build for another PyTorch fails in many ways
        return f"Pillow (torchvision: {failure(error)})", _Peer(size, None)
    steps = (transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip())
    return "torchvision", _Peer(size, transforms.Compose(steps))


def trained(epoch: Epoch, device: str = "cuda") -> Epoch:
    """Return an epoch that yields each batch when an optimizer step with it has ended."""
    from headrace_probes.training import loss_of, make_optimizer, resnet50

    network = resnet50().to(device)
    optimizer = make_optimizer(network)

    def steps() -> Iterator[Pair]:
        for images, numbers in epoch():
            optimizer.zero_grad()
            there, labels = (each.to(device, non_blocking=True) for each in (images, numbers))
            with torch.autocast(device, torch.bfloat16):
                loss = loss_of(network, there, labels)
            torch.autograd.backward(loss)
            optimizer.step()
            loss.item()  # waits for the device
            yield images, numbers

    return steps
