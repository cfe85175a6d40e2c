"""Parts of the GPU check: copies of batches and weights, losses, two ranks, samples of use."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from headrace.clusters.gpus import handles, visible_gpus
from headrace.errors import NotFiniteLossError
from headrace.training.checkpoint_writer import host_copy
from headrace.training.history_writer import RankUsage, Usage
from headrace.training.trainer import LossGuard
from headrace_bench.gpu_rows import GpuRow, Rows, confirmed, failed, skipped
from headrace_bench.read import loader_epoch
from headrace_bench.samples import SampleShape, random_samples
from headrace_bench.shards import write_dataset

_BUSY, _BUSY_WITHIN_S, _PRODUCTS = 0.9, 20.0, 1500
_RANKS, _BATCH, _STEPS = 2, 16, 4
_TOLERANCE = 1e-6
_DDP, _SYNC = "two-ranks", "two-ranks-batchnorm"
_QUERY = "uuid,utilization.gpu,memory.used,memory.total,power.draw"


def the_device() -> torch.device:
    """Return the first GPU; the CPU if PyTorch finds none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def copies(folder: Path) -> Rows:
    """Check that batches and weights stay whole while they are copied, and that NaN is found."""
    device = the_device()
    return (batches(folder, device), checkpoint_copy(device), loss_guard(device))


def batches(folder: Path, device: torch.device) -> GpuRow:
    """Copy batches to the device while the loader goes on; compare them with the samples."""
    on_gpu = device.type == "cuda"
    batch_size = 64 if on_gpu else 8
    shape = SampleShape(side=224, num_samples=16 * batch_size, batch_size=batch_size)
    samples = torch.from_numpy(random_samples(shape))
    write_dataset(folder / "dataset", samples.numpy(), shape.sample_bytes)
    if on_gpu:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    found, problems = [], []
    for image, label in loader_epoch(folder / "dataset", shape.batch_size)():
        if on_gpu and not image.is_pinned():
            problems = ["batches are not in page-locked memory"]
        found.append((image.to(device, non_blocking=True, copy=True), label.clone()))
    if len(found) != shape.num_samples // shape.batch_size:
        problems.append(f"{len(found)} batches came")
    wrong = sum(not torch.equal(there.cpu(), samples[numbers]) for there, numbers in found)
    problems += [f"{wrong} batches differ from their samples"] * bool(wrong)
    return confirmed("batches", f"{len(found)} whole on {device.type}", problems)


def checkpoint_copy(device: torch.device) -> GpuRow:
    """Change weights after they were copied for a checkpoint; the copy keeps the values."""
    weights = torch.rand(1000, 1000, device=device)
    before = weights.cpu().clone()
    content = host_copy({"state_dict": {"weights": weights}}, None)
    copied = content["state_dict"]["weights"]
    weights.mul_(2)
    problems = [] if copied.device.type == "cpu" else [f"the copy is on {copied.device.type}"]
    if not torch.equal(copied.cpu(), before):
        problems.append("the copy has changed with the weights")
    return confirmed("checkpoint-copy", "does not change with the weights", problems)


def loss_guard(device: torch.device) -> GpuRow:
    """Let the second of three losses be NaN; training has to end, and name the step."""
    guard = LossGuard(enabled=True)
    trainer = SimpleNamespace(current_epoch=0, global_step=0, accumulate_grad_batches=1)
    module = SimpleNamespace(automatic_optimization=True)
    reason = "NaN is not found"
    try:
        for trainer.global_step, loss in enumerate((1.0, float("nan"), 1.0), 1):
            guard._looked_at = time.monotonic()  # noqa: SLF001  it looks once a second
            outputs = {"loss": torch.tensor(loss, device=device)}
            guard.on_train_batch_end(trainer, module, outputs)
        guard.check()
    except NotFiniteLossError as error:
        reason = error.what
    return confirmed("nan-loss", reason, [] if "in step 2" in reason else [reason])


def two_ranks(folder: Path) -> Rows:
    """Compare two ranks by gloo, on one device, with one rank on the whole batch."""
    spawn(_rank, (folder,), nprocs=_RANKS)  # type: ignore[no-untyped-call]
    found = torch.load(folder / "losses.pt")
    return tuple(_same_losses(name, *found[name]) for name in found) + (
        () if torch.cuda.is_available() else (skipped(_SYNC, "PyTorch does it on GPUs only"),)
    )


def _same_losses(name: str, whole: list[float], ranks: list[float]) -> GpuRow:
    pairs = zip(whole, ranks, strict=True)
    is_same = all(math.isclose(one, other, rel_tol=_TOLERANCE) for one, other in pairs)
    finding = f"{_RANKS} ranks on one {the_device().type}, last loss {ranks[-1]:.6f}, as one rank"
    problem = f"losses of {_RANKS} ranks are {ranks}, of one rank {whole}"
    return confirmed(name, finding, [] if is_same else [problem])


def _rank(rank: int, folder: Path) -> None:
    """Train as one of the ranks; the first one writes all losses."""
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=_RANKS)
    try:
        names = (_DDP, *((_SYNC,) if torch.cuda.is_available() else ()))
        losses = {name: (_losses(name, None), _losses(name, rank)) for name in names}
    finally:
        dist.destroy_process_group()
    if rank == 0:
        torch.save(losses, folder / "losses.pt")


def _losses(name: str, rank: int | None) -> list[float]:
    """Return losses of the whole batch, by all ranks; without `rank`, by this process alone."""
    device, part = the_device(), slice(rank, None, None if rank is None else _RANKS)
    torch.manual_seed(3)
    norm = nn.BatchNorm2d(8) if name == _SYNC else nn.Identity()
    layers = (nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 1))
    network: nn.Module = nn.Sequential(*layers).double().to(device)
    if rank is not None:
        if name == _SYNC:
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
        network = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    images = torch.randn(_BATCH, 3, 8, 8, dtype=torch.double).to(device)
    losses = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss: Tensor = (network(images[part]) - 1).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        mean = loss.detach().cpu()
        if rank is not None:
            dist.all_reduce(mean)
            mean /= _RANKS
        losses.append(float(mean))
    return losses


def usage(folder: Path) -> Rows:
    """Compare headrace's samples of GPUs with `nvidia-smi`, while each GPU works."""
    del folder
    if shutil.which("nvidia-smi") is None:
        return (skipped("usage", "nvidia-smi is missing"), rank_memory())
    parts = [line for line in _smi("-L").splitlines() if line.lstrip().startswith("MIG ")]
    if parts or handles() is None:
        reason = "NVML has no use of parts of a GPU" if parts else "nvidia-ml-py is not installed"
        return (skipped("usage", reason), rank_memory(), _names(parts))
    return (_sampled(), rank_memory(), _names(parts))


def _smi(*arguments: str) -> str:
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def _sampled() -> GpuRow:
    """Sample until the GPUs are busy; compare that sample."""
    numbers = range(torch.cuda.device_count())
    matrices = [torch.rand(4096, 4096, device=f"cuda:{number}") for number in numbers]
    source, ends_at, ours = Usage("here"), time.monotonic() + _BUSY_WITHIN_S, None
    while ours is None or ours.gpu is None or ours.gpu <= _BUSY:
        if time.monotonic() > ends_at:
            return failed("usage", f"use of the working GPUs is {ours and ours.gpu}")
        for _ in range(_PRODUCTS):  # more than can wait, so that the GPUs are busy here
            matrices = [torch.mm(each, each).clamp_(0, 1) for each in matrices]
        ours = source.look()
        answer = _smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
        for number in numbers:
            torch.cuda.synchronize(number)
    uuids = {gpu.uuid for gpu in visible_gpus()[1]}
    rows = [row for row in (line.split(", ") for line in answer.splitlines()) if row[0] in uuids]
    use, used, total, power_w = (sum(float(row[at]) for row in rows) for at in range(1, 5))
    pairs = (
        ("use", ours.gpu, use / len(uuids) / 100, 0.25),
        ("memory", ours.gpu_memory, used / total, 0.02),
        ("watts", ours.gpu_power_w, power_w, 0.25 * power_w),
    )
    problems = [
        f"{name} is {value}, in nvidia-smi {theirs:.3f}"
        for name, value, theirs, tolerance in pairs
        if value is None or abs(value - theirs) > tolerance
    ]
    return confirmed("usage", ", ".join(f"{name} {value}" for name, value, *_ in pairs), problems)


def rank_memory() -> GpuRow:
    """Compare the memory that a rank reports with PyTorch's."""
    held = torch.zeros(2**20, device="cuda")
    row, wanted = RankUsage(0, "here").look(), torch.cuda.memory_reserved()
    problems = [] if row.gpu_bytes == wanted else [f"{row.gpu_bytes} bytes, in PyTorch {wanted}"]
    if row.gpu_peak_bytes is None or row.gpu_peak_bytes < held.nbytes:
        problems.append(f"the peak is {row.gpu_peak_bytes} bytes")
    return confirmed("rank-memory", f"{wanted:,} bytes, as PyTorch", problems)


def _names(parts: list[str]) -> GpuRow:
    """Compare the names by which GPUs are assigned with those of `nvidia-smi`."""
    _, gpus = visible_gpus()
    listed = "\n".join(parts or _smi("-L").splitlines())
    problems = [f"{gpu.name} is unknown" for gpu in gpus if gpu.uuid not in listed]
    if parts and not all(gpu.name.startswith("MIG-") for gpu in gpus):
        problems.append("parts are not assigned by their names")
    return confirmed("GPU names", f"MIG: {len(parts)} parts" if parts else "MIG is off", problems)
