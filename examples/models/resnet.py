"""ResNet-50 with the recipe for large batches."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolution beside a shortcut (He et al., 2015)."""

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = 4 * width
        self.inner = nn.Sequential(
            nn.Conv2d(channels_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, channels_out, 1, bias=False), nn.BatchNorm2d(channels_out),
        )  # fmt: skip
        nn.init.zeros_(self.inner[-1].weight)  # each block begins as its shortcut
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, values: Tensor) -> Tensor:
        """`(batch, channels, height, width)` to another number of channels."""
        return relu(self.inner(values) + self.shortcut(values))


class ResNet50(pl.LightningModule):
    """Classifies coloured pictures; trained as by Goyal et al. (2017), "Accurate, Large Minibatch".

    SGD with Nesterov momentum, a learning rate in proportion to the batch after a warm-up, no
    weight decay for biases and normalisation, smoothed labels, cosine decay.

    Args:
        num_classes: Classes.
        learning_rate: Highest step size: 0.1 for 256 samples an optimizer step.
        warmup_steps: Optimizer steps over which it rises to that.
        label_smoothing: Share of each label that goes to all classes.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        learning_rate: float = 0.1,
        warmup_steps: int = 500,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.label_smoothing = label_smoothing
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        channels = 64
        for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for place in range(depth):
                stride = 2 if place == 0 and width > 64 else 1
                layers.append(Bottleneck(channels, width, stride))
                channels = 4 * width
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
        self.network = nn.Sequential(*layers, *head)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Mean loss of the batch."""
        scores = self.network(batch["image"])
        return cross_entropy(scores, batch["label"], label_smoothing=self.label_smoothing)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """Without smoothed labels."""
        loss = cross_entropy(self.network(batch["image"]), batch["label"])
        self.log("val_loss", loss, sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Scores."""
        return self.network(batch["image"])

    def configure_optimizers(self) -> dict[str, object]:
        """SGD, and its learning rate by optimizer steps."""
        plain = [each for each in self.parameters() if each.ndim < 2]
        decayed = [each for each in self.parameters() if each.ndim >= 2]
        groups = [{"params": decayed, "weight_decay": 5e-5}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.SGD(groups, self.learning_rate, momentum=0.9, nesterov=True)
        steps = max(int(self.trainer.estimated_stepping_batches), self.warmup_steps + 1)
        rising = LinearLR(optimizer, 1 / max(self.warmup_steps, 1), total_iters=self.warmup_steps)
        falling = CosineAnnealingLR(optimizer, steps - self.warmup_steps)
        schedule = SequentialLR(optimizer, [rising, falling], [self.warmup_steps])
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
