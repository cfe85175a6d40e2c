"""DDP training of ResNet-50 on pictures that lie in memory: images a second."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace.probes.network import has_gpus, join
from headrace.probes.records import Findings, Measurement
from headrace.probes.requests import Request
from headrace.probes.resnet import loss_of, make_optimizer, resnet50

_WARM_UP = 2


def measure(request: Request) -> Findings:
    """Images a second of all ranks together, one value a step; rank 0 tells."""
    on_gpu = has_gpus(request)
    device = torch.device("cuda", request.local_rank) if on_gpu else torch.device("cpu")
    torch.set_num_threads(request.cores)
    if request.options.quick:
        batch, side = 2, 32
    else:
        batch, side = (64, 224) if on_gpu else (8, 64)
    join(request, "nccl" if on_gpu else "gloo")
    try:
        seconds = _steps(request, device, batch, side)
    finally:
        dist.destroy_process_group()
    if request.rank:
        return Findings()
    ranks = f"{request.world_size} rank{'s' if request.world_size > 1 else ''}"
    where = "GPU" if on_gpu else f"{request.cores} CPU threads"
    made = Measurement(
        part="train",
        name=f"ResNet-50, {ranks}",
        settings=f"fp32, {batch} pictures of {side} x {side} and {where} a rank",
        unit="images/s",
        ranks=request.world_size,
        values=tuple(batch * request.world_size / each for each in seconds),
    )
    return Findings(measurements=(made,))


def _steps(request: Request, device: torch.device, batch: int, side: int) -> list[float]:
    """Seconds of each optimizer step after the warm-up."""
    torch.manual_seed(request.rank)
    images = torch.randint(0, 256, (batch, side, side, 3), dtype=torch.uint8, device=device)
    labels = torch.arange(batch, device=device)
    network = DistributedDataParallel(resnet50().to(device))
    optimizer = make_optimizer(network)
    seconds = []
    for _ in range(_WARM_UP + request.options.repeats):
        start = time.perf_counter()
        optimizer.zero_grad()
        torch.autograd.backward(loss_of(network, images, labels))
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[_WARM_UP:]
