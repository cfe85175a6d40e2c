"""ResNet-50 that notes when its steps end; one network for headrace and for the plain loop."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from headrace.files.atomic import write_json

NUM_CLASSES = 10
WARM_UP = 3
"""Steps that do not count: the first ones of a process take longer."""

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


class StepTimes:
    """When the first step, those of the warm-up and all steps had ended: `[s, s, s]`, as JSON.

    Args:
        file: Where to write them; what a rank but the first notes is for nobody.
        steps: Steps there are, more than `WARM_UP`.
        device: It is waited for, as its work is not done when it has been asked for.
    """

    def __init__(self, file: Path, steps: int, device: torch.device) -> None:
        self._file, self._device = file, device
        self._marks = (1, WARM_UP, steps)
        self._done = 0
        self._times: list[float] = []

    def step_ended(self) -> None:
        """Note the time, in seconds since the epoch, where it is wanted."""
        self._done += 1
        if self._done not in self._marks:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._times.append(time.time())
        if self._done == self._marks[-1]:
            write_json(self._file, self._times)


class TimedResNet50(LightningModule):  # type: ignore[misc]
    """What headrace trains.

    Args:
        steps: Steps there will be.
        file: For `StepTimes` of rank 0.
    """

    def __init__(self, steps: int, file: str) -> None:
        super().__init__()
        self.network = resnet50()
        self._steps, self._file = steps, Path(file)
        self._times: StepTimes | None = None

    def on_train_start(self) -> None:
        """Begin to count."""
        if self.global_rank == 0:
            self._times = StepTimes(self._file, self._steps, self.device)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Loss of a batch."""
        del index
        return loss_of(self.network, batch["image"], batch["label"])

    def on_train_batch_end(self, *_: object) -> None:
        """Note the time."""
        if self._times is not None:
            self._times.step_ended()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As in the plain loop."""
        return make_optimizer(self.network)
