"""Two inputs: a picture, and a question about it."""

from __future__ import annotations

import zlib
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = dict[str, Any]


class AnswersQuestions(pl.LightningModule):
    """Picks the answer to a question about a grey picture of 32 x 32 pixels.

    Words of the question are hashed, so no vocabulary must be stored.

    Args:
        num_answers: Answers to choose from.
        width: Length of the vectors that picture and question become.
        learning_rate: Step size of Adam.
    """

    NUM_WORDS = 512

    def __init__(self, num_answers: int = 5, width: int = 64, learning_rate: float = 3e-3) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.words = nn.EmbeddingBag(self.NUM_WORDS, width, mode="mean")
        self.picture = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.LazyLinear(width),
        )  # fmt: skip
        self.picture(torch.zeros(1, 1, 32, 32))  # sets the lazy layer's shape
        self.answer = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, num_answers)
        )

    def forward(self, batch: Batch) -> Tensor:
        """Scores `(batch, answers)`; `question` is a list of strings."""
        words = [
            [zlib.crc32(word.encode()) % self.NUM_WORDS for word in question.split()]
            for question in batch["question"]
        ]
        starts = torch.tensor([0] + [len(each) for each in words[:-1]]).cumsum(0)
        numbers = torch.tensor([word for each in words for word in each])
        asked = self.words(numbers.to(self.device), starts.to(self.device))
        picture = self.picture(batch["image"].unsqueeze(1))
        return self.answer(torch.cat([picture, asked], 1))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        """Mean loss of the batch."""
        return cross_entropy(self(batch), batch["label"])

    def validation_step(self, batch: Batch, index: int) -> None:
        """As in training."""
        self.log("val_loss", cross_entropy(self(batch), batch["label"]), sync_dist=True)

    def predict_step(self, batch: Batch, index: int) -> Tensor:
        """Scores."""
        return self(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)
