"""DDP training of ResNet-50 (He et al., 2015), in plain PyTorch, with images in memory."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from headrace_probes.network import has_gpus, join
from headrace_probes.probe_records import Findings, Measurement, ProbeRequest

_WARM_UP = 2


def measure(request: ProbeRequest) -> Findings:
    """Measure images per second of all ranks together, one value per step; rank 0 returns them."""
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


def _steps(request: ProbeRequest, device: torch.device, batch: int, side: int) -> list[float]:
    """Return the seconds of each optimizer step after the warm-up."""
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


NUM_CLASSES = 10
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


class _Block(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolution beside a shortcut (He et al., 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.inner = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(self.inner(values) + self.shortcut(values))


def resnet50() -> nn.Module:
    """Return the network: `(batch, 3, side, side) float32` to `(batch, classes)`."""
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, depth, stride in _STAGES:
        for index in range(depth):
            layers.append(_Block(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES))
    return nn.Sequential(*layers, *head)


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum; too slow to diverge on random pictures."""
    return torch.optim.SGD(network.parameters(), lr=0.0001, momentum=0.9)


def loss_of(network: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    """Loss of pictures `(batch, side, side, 3) uint8`."""
    pictures = image.permute(0, 3, 1, 2).float() / 255
    return cross_entropy(network(pictures), label % NUM_CLASSES)
