"""An audio tagger: a convolutional network over the logarithmic spectrogram."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class AudioTagger(pl.LightningModule):
    """Classifies recordings at 16 kHz.

    Args:
        num_classes: Tags.
        window: Samples of a window of the spectrogram; half of them overlap.
        learning_rate: Step size of AdamW.
    """

    def __init__(
        self, num_classes: int = 3, window: int = 512, learning_rate: float = 3e-3
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.register_buffer("window", torch.hann_window(window))
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d((8, 1)), nn.Flatten(),
            nn.Linear(256, num_classes),
        )  # fmt: skip

    def forward(self, audio: Tensor) -> Tensor:
        """Scores `(batch, classes)` of recordings `(batch, samples)` between -1 and 1."""
        size = len(self.window)
        spectrum = torch.stft(audio, size, size // 2, window=self.window, return_complex=True)
        return self.network(torch.log(spectrum.abs() + 1e-3).unsqueeze(1))

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Mean loss of the batch."""
        return cross_entropy(self(batch["audio"]), batch["label"])

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """As in training."""
        self.log("val_loss", cross_entropy(self(batch["audio"]), batch["label"]), sync_dist=True)

    def predict_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Scores."""
        return self(batch["audio"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
