"""Parts of the GPU check: batches by all cores and worker processes, decoded and held on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.data.dataset import Reading, SampleReader
from headrace.data.device_decode import DeviceDecoder, nvimgcodec
from headrace.data.loaders import DataSettings, Loaders
from headrace.data.module import HeadraceDataModule
from headrace.fields.field_kind import kind_of_encoding
from headrace.recipe.base import Target
from headrace.recipe.recipe import DataSpec
from headrace.recipe.site import Tier
from headrace.shards.dataset import ShardedDataset
from headrace_bench.gpu_data import the_device
from headrace_bench.gpu_rows import Rows, confirmed, failed, judged, skipped
from headrace_bench.machine import num_cores
from headrace_bench.photos import (
    PhotoOptions,
    decode_jpeg,
    make_photographs,
    photo_epoch,
    square_pictures,
    trained,
)
from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.shards import SAMPLE, SPLIT, write_dataset

_LAP_S, _CPU_LAP_S = 3.0, 0.3
_UNLIKE = 32
_DIFFERENCE = 4.0
"""Allowed mean difference of a pixel decoded on the GPU, of 255."""
_AU_GOAL = 0.98


def _rate(work: Callable[[], Iterable[int]]) -> float:
    """Return units per second of work that is repeated; it yields the units that it has done."""
    lap_s = _LAP_S if torch.cuda.is_available() else _CPU_LAP_S
    began, done = time.perf_counter(), 0
    while True:
        for units in work():
            done += units
            if (seconds := time.perf_counter() - began) > lap_s:
                return done / seconds


def decode(folder: Path) -> Rows:
    """Measure photographs decoded per second by one core, and by all."""
    del folder
    files, kind, cores = make_photographs(_UNLIKE).files, kind_of_encoding("jpeg"), num_cores()

    def decoded(file: bytes) -> int:
        kind.decode(file)
        return 1

    def rate(num_threads: int) -> float:
        with ThreadPoolExecutor(num_threads) as pool:
            return _rate(lambda: pool.map(decoded, files * num_threads))

    one, all_ = rate(1), rate(cores)
    share = all_ / one / cores
    finding = f"{one:,.0f} photographs/s on one core, {all_:,.0f} on {cores}: {share:.2f} a core"
    return (judged("decode", all_, finding, unit="photographs/s"),)


class Halved:
    """Python for each sample: halves its values."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with a mean as float."""
        image = sample[SAMPLE].float() / 2
        return {**sample, SAMPLE: image, "mean": torch.tensor(float(np.mean(image.numpy())))}


def workers(folder: Path) -> Rows:
    """Compare batches by worker processes with those by threads."""
    shape = SampleShape(side=64, num_samples=512, batch_size=32)
    write_dataset(folder / "dataset", random_samples(shape), shape.sample_bytes)
    target = Target.model_validate({"_target_": f"{__name__}.Halved"})
    made: dict[int, Loaders] = {}
    for count in (num_cores(), 0):  # before a GPU is used: processes are forked
        spec = DataSpec(
            global_batch_size=shape.batch_size, workers=count, sample_transforms=(target,)
        )
        reading = Reading(transforms=(Halved(),))
        settings = DataSettings(folder=folder / "dataset", spec=spec, seed=3, reading=reading)
        made[count] = Loaders(settings)
    by_processes, by_threads = (list(each.train) for each in made.values())
    problems = [] if _are_equal(by_processes, by_threads) else ["batches differ from threads'"]
    processes, threads = (_rate(partial(map, _len, each.train)) for each in made.values())
    finding = f"batches as by threads; {processes:,.0f} samples/s by {num_cores()} processes, "
    return (confirmed("workers", f"{finding}{threads:,.0f} by threads", problems),)


def _len(batch: dict[str, Any]) -> int:
    return len(batch["label"])


def _are_equal(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    pairs = [
        (one[name].cpu(), other[name].cpu())
        for one, other in zip(some, others, strict=True)
        for name in (SAMPLE, "label")
    ]
    return bool(pairs) and all(map(torch.equal, *zip(*pairs, strict=True)))


def gpu_decode(folder: Path) -> Rows:
    """Compare JPEG decoded on the GPU with the CPU's pixels."""
    name, device = "gpu-decode", the_device()
    files, notes, decoder = square_pictures(256).files, dict[str, str](), DeviceDecoder()
    write_dataset(folder / "dataset", files, max(map(len, files)))
    decoder.open(device, notes)
    if device.type == "cpu" or nvimgcodec() is None:
        return (skipped(name, notes["decoder"]),)
    reader = SampleReader(ShardedDataset(folder / "dataset", SPLIT), Reading(decoder=decoder))
    numbers = np.arange(len(files))
    found = reader.read(numbers)[SAMPLE]
    if notes["decoder"].startswith("the CPU") or "decoded_by_cpu" in notes or not found.is_cuda:
        return (failed(name, f"not decoded on the GPU: {notes}"),)
    expected = torch.from_numpy(np.stack([decode_jpeg(BytesIO(each)) for each in files])).to(device)
    difference = float((found.float() - expected.float()).abs().mean())

    def read() -> Iterable[int]:
        reader.read(numbers)
        torch.cuda.synchronize()
        yield len(numbers)

    finding = f"{_rate(read):,.0f} images/s by {notes['decoder']}; mean difference of a pixel"
    return (judged(name, difference, f"{finding} {difference:.2f}", at_most=_DIFFERENCE),)


def gpu_tier(folder: Path) -> Rows:
    """Compare batches of a split that is held on the GPU with those from the host."""
    name, device = "gpu-tier", the_device()
    count = 4096 if device.type == "cuda" else 64
    shape = SampleShape(side=224, num_samples=count, batch_size=count // 16)
    write_dataset(folder / "dataset", random_samples(shape), shape.sample_bytes)
    spec = DataSpec(global_batch_size=shape.batch_size)
    found = {}
    for tier in (None, Tier(name="gpu", reserve=0)):
        settings = DataSettings(folder=folder / "dataset", spec=spec, seed=3, gpu_tier=tier)
        module = HeadraceDataModule(settings)
        found[tier is None] = _held(module, device)
    (state, held), (_, host) = found[False], found[True]
    problems = [] if _are_equal(held, host) else ["batches differ from the host's"]
    if device.type == "cpu" and not problems:
        return (skipped(name, state),)
    if not state.startswith("holds"):
        problems.append(state)
    return (confirmed(name, f"{state}; batches as from the host", problems),)


def _held(module: HeadraceDataModule, device: torch.device) -> tuple[str, list[dict[str, Tensor]]]:
    """Return the state of the tier, and the batches of the second epoch, which it gives."""
    trainer = SimpleNamespace(
        training=True, global_step=0, strategy=SimpleNamespace(root_device=device)
    )
    module.trainer = trainer
    batches: list[dict[str, Tensor]] = []
    for epoch in range(2):
        module.train_loader.set_epoch(epoch)
        batches = []
        for batch in module.train_loader:
            there = module.transfer_batch_to_device(batch, device, 0)
            batch = module.on_after_batch_transfer(there, 0)
            batches.append({key: batch[key].cpu().clone() for key in (SAMPLE, "label")})
            trainer.global_step += 1
    return module.notes.get("gpu_tier", ""), batches


def photos(folder: Path) -> Rows:
    """Measure the share of a training's speed that is left if it is fed from photographs."""
    device = the_device()
    on_gpu = device.type == "cuda"
    count, size, batch_size = (2**13, 224, 256) if on_gpu else (16, 32, 4)
    files = make_photographs(min(count, 256)).repeated(count)
    write_dataset(folder / "dataset", files, max(map(len, files)))
    options = PhotoOptions(size=size, batch_size=batch_size, folder=folder)
    epoch = photo_epoch(folder / "dataset", options)
    first = next(iter(epoch()))
    same = first[0].to(device, copy=True), first[1].clone()
    rates = []
    for fed in (lambda: iter([same] * (count // batch_size)), epoch):
        steps = iter(trained(fed, device.type)())
        next(steps)  # kernels are chosen, and the first batch is made
        began = time.perf_counter()
        done = sum(len(numbers) for _, numbers in steps)
        rates.append(done / (time.perf_counter() - began))
    limit, rate = rates
    finding = f"{rate / limit:.3f} of {limit:,.0f} samples/s of batches that lie on the device"
    goal = _AU_GOAL if on_gpu else None
    return (judged("photos", rate / limit, f"{finding}: ResNet-50, bf16", at_least=goal),)
