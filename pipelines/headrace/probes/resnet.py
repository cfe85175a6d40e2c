"""ResNet-50 (He et al., 2015) in plain PyTorch: what probes and benchmarks train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
    """The network: `(batch, 3, side, side) float32` to `(batch, classes)`."""
    stem = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, depth, stride in _STAGES:
        for place in range(depth):
            layers.append(_Block(channels, width, stride if place == 0 else 1))
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
