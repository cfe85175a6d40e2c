"""Part of the GPU check: two ranks that share a device."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from headrace_bench.gpu_data import the_device
from headrace_bench.gpu_rows import GpuRow, Rows, confirmed, skipped

_RANKS, _BATCH, _STEPS = 2, 16, 4
_TOLERANCE = 1e-6
_DDP, _SYNC = "two-ranks", "two-ranks-batchnorm"


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
