"""A small U-Net: a class for each pixel."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class UNet(pl.LightningModule):
    """Segments grey pictures whose sides are multiples of four (Ronneberger et al., 2015).

    Args:
        num_classes: Values of the mask, with 0 for the background.
        width: Channels of the first block.
        learning_rate: Step size of Adam.
    """

    def __init__(self, num_classes: int = 4, width: int = 8, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.first, self.second = _block(1, width), _block(width, 2 * width)
        self.bottom = _block(2 * width, 4 * width)
        self.rise_2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.rise_1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.back_2, self.back_1 = _block(4 * width, 2 * width), _block(2 * width, width)
        self.head = nn.Conv2d(width, num_classes, 1)
        self.shrink = nn.MaxPool2d(2)

    def forward(self, image: Tensor) -> Tensor:
        """Scores `(batch, classes, height, width)` of pictures `(batch, height, width)`."""
        first = self.first(image.unsqueeze(1))
        second = self.second(self.shrink(first))
        bottom = self.bottom(self.shrink(second))
        middle = self.back_2(torch.cat([second, self.rise_2(bottom)], 1))
        return self.head(self.back_1(torch.cat([first, self.rise_1(middle)], 1)))

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Mean loss of the pixels."""
        return cross_entropy(self(batch["image"]), batch["mask"].long())

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """As in training."""
        loss = cross_entropy(self(batch["image"]), batch["mask"].long())
        self.log("val_loss", loss, sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], index: int) -> dict[str, Tensor]:
        """Masks found and given, as the metrics of the recipe take them."""
        return {"preds": self(batch["image"]).argmax(1), "target": batch["mask"].long()}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
