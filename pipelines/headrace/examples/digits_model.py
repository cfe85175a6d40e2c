"""A small convolutional network for the handwritten digits of the demo."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

Batch = dict[str, Tensor]


class DigitsClassifier(LightningModule):  # type: ignore[misc]
    """Classifies grey pictures of 8 x 8 pixels into ten digits.

    Args:
        learning_rate: Step size of Adam.
        dropout: Share of the hidden units left out while training.
    """

    def __init__(self, learning_rate: float = 0.003, dropout: float = 0.25) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.network = nn.Sequential(
            nn.Conv2d(1, 24, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 48, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(48 * 4 * 4, 96),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(96, 10),
        )
        self.val_accuracy = MulticlassAccuracy(num_classes=10, average="micro")

    def forward(self, image: Tensor) -> Tensor:
        """Scores of pictures.

        Args:
            image: `(batch, 8, 8) float32`, from 0 to 1.

        Returns:
            `(batch, 10) float32`, not normalised.
        """
        scores: Tensor = self.network(image.unsqueeze(1))
        return scores

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Cross entropy of a batch with `image` and `label`."""
        del index
        loss = nn.functional.cross_entropy(self(batch["image"]), batch["label"])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        """Count the correct answers in a batch with `image` and `label`."""
        del index
        self.val_accuracy.update(self(batch["image"]), batch["label"])
        self.log("val/accuracy", self.val_accuracy, batch_size=len(batch["label"]))

    def predict_step(self, batch: Batch, index: int) -> Tensor:
        """Scores `(batch, 10)`."""
        del index
        scores: Tensor = self(batch["image"])
        return scores

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam over all weights."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
