"""Photographs as ImageNet is trained: headrace's loader against torch's DataLoader.

Both give random crops, some mirrored. With a GPU a ResNet-50 is trained on them; without one they
are only read, because the network would take nearly all of the time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from headrace.data.dataset import Reading
from headrace.data.loader import BatchLoader
from headrace.data.order import TrainOrder
from headrace.data.transforms import RandomResizedCrop
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace_bench.contest import FAULTS, Tick, Variant, compete, failure
from headrace_bench.laps import Reader, Tuned, reading
from headrace_bench.peers.files import Samples, loader_of
from headrace_bench.peers.peer import Epoch, Pair, PeerReading
from headrace_bench.records import BenchTable
from headrace_bench.shards import SAMPLE, SPLIT, write_dataset
from headrace_bench.workspace import workspace
from headrace_probes.training import loss_of, make_optimizer, resnet50

_BYTES = 150_000
"""Of the largest photographs; on average they have 110 KB, as in ImageNet."""
_WIDTHS, _HEIGHTS = (460, 541), (330, 421)
_QUALITY, _NOISE = 90, 21.0
_TINTS, _VARIATION = (60, 196), 30
"""Colours of photographs on average, and how much they vary inside one."""
_TOLERANCE = 60
"""Most difference between the average colours of a photograph and of a crop."""


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


def bench_photos(options: PhotoOptions, tick: Tick) -> tuple[BenchTable, ...]:
    """Return the table of photographs.

    Raises:
        StorageFullError: The folder has no room.
    """
    count = max(options.unlike * _num_cores(), 2 * options.batch_size)
    with workspace(options.folder, 2 * count * _BYTES) as folder:
        tick("making photographs")
        made = make_photographs(options.unlike)
        files = [made.files[number % options.unlike] for number in range(count)]
        write_dataset(folder / "headrace", files, _BYTES)
        (folder / "files").mkdir()
        for number, file in enumerate(files):
            (folder / "files" / f"{number:08d}.jpg").write_bytes(file)
        rows = compete(_variants(options, made, folder), options.rounds, tick)
    done = "ResNet-50 trained in bf16" if torch.cuda.is_available() else "read, without a network"
    mean_bytes = sum(map(len, made.files)) // options.unlike
    return (
        BenchTable(
            title=f"photographs, {done}, {count:,} of about {mean_bytes:,} bytes, crops of "
            f"{options.size} x {options.size}, batches of {options.batch_size}",
            rows=tuple(rows),
            notes=("Rates count the bytes of crops. Goal: 1.5 of the peer.",),
        ),
    )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


def make_photographs(count: int) -> Photographs:
    """Make photographs of ImageNet's sizes: smooth, with noise, each of its own colour."""
    rng = np.random.default_rng(0)
    tints = rng.integers(*_TINTS, (count, 3))
    files: list[bytes] = []
    for number, tint in enumerate(tints):
        sides = int(rng.integers(*_WIDTHS)), int(rng.integers(*_HEIGHTS))
        coarse = (tint + rng.integers(-_VARIATION, _VARIATION, (12, 16, 3))).astype(np.uint8)
        smooth = Image.fromarray(coarse).resize(
            sides if number % 4 else sides[::-1], Image.Resampling.BICUBIC
        )
        noise = rng.standard_normal((smooth.height, smooth.width, 3), np.float32)
        pixels = np.clip(np.asarray(smooth) + noise * _NOISE, 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY)
        files.append(file.getvalue())
    return Photographs(files=tuple(files), tints=torch.from_numpy(tints))


def _variants(options: PhotoOptions, made: Photographs, folder: Path) -> list[Variant]:
    used = trained if torch.cuda.is_available() else lambda epoch: epoch
    paths = sorted((folder / "files").glob("*.jpg"))
    library, crop = _peer(options.size)

    def check(crops: Tensor, numbers: Tensor) -> bool:
        colours = crops.float().mean(dim=(1, 2))
        expected = made.tints[numbers % options.unlike]
        return bool((colours - expected).abs().max() < _TOLERANCE)

    def over_files(num_workers: int) -> Reader:
        how = PeerReading(
            folder=folder / "files",
            sample_shape=(options.size, options.size, 3),
            batch_size=options.batch_size,
            num_workers=num_workers,
        )
        return replace(reader, epoch=used(loader_of(Samples(paths, crop), how)), skips_start=True)

    reader = Reader(
        epoch=used(photo_epoch(folder / "headrace", options)),
        lap_s=options.lap_s,
        num_samples=len(paths) // options.batch_size * options.batch_size,
        check=check,
    )
    cores = _num_cores()
    how = f"torch DataLoader, {library}, full shuffle"
    peer = Tuned(sorted({0, 2, cores // 2, cores}), over_files, how)
    return [
        reading("headrace", "headrace", reader, "BatchLoader as in training, RandomResizedCrop"),
        Variant(name="DataLoader over files", kind="peer", lap=peer.lap, settings=peer.settings),
    ]


def photo_epoch(folder: Path, options: PhotoOptions) -> Epoch:
    """Return passes over a dataset of photographs, each with other random crops."""
    dataset = ShardedDataset(folder, SPLIT)
    order = TrainOrder(num_samples=len(dataset), seed=0, global_batch_size=options.batch_size)
    made = Reading(transforms=(RandomResizedCrop(size=options.size),))
    loader = BatchLoader(dataset, order, prefetch=DataSpec().prefetch, reading=made)
    epochs = iter(range(2**60))

    def epoch() -> Iterator[Pair]:
        loader.set_epoch(next(epochs))
        for batch in loader:
            yield batch[SAMPLE], batch["label"]

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
