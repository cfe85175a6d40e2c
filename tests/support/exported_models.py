"""Models that programs can be exported of, and such that torch.export or ONNX refuse."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class Table(LightningModule):
    """Two outputs by name for rows of three numbers."""

    def __init__(self, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.learning_rate, self.layer = learning_rate, nn.Linear(3, 2)

    def predict_step(self, batch: Any, index: int) -> Any:
        mean, width = self.layer(batch["row"]).T
        return {"preds": mean, "width": width.exp()}


class Pair(Table):
    """The second part of a tuple is not used."""

    def predict_step(self, batch: Any, index: int) -> Any:
        row, _ = batch
        return self.layer(row)


class OfShape(Table):
    """`forward` of the first part of a tuple; no `predict_step`."""

    predict_step = LightningModule.predict_step

    def forward(self, row: Tensor) -> Tensor:
        return self.layer(row)


class Sound(Table):
    """Scores of sound of any length."""

    def predict_step(self, batch: Any, index: int) -> Any:
        sound = batch["sound"]
        return self.layer(torch.stack([sound.mean(1), sound.amax(1), sound.amin(1)], 1))


class Words(Table):
    """Takes texts, which are no tensors."""

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.layer(torch.tensor([[len(each), 0.0, 1.0] for each in batch["words"]]))


class Branch(Table):
    """Python decides by a value."""

    def predict_step(self, batch: Any, index: int) -> Any:
        scores = self.layer(batch["row"])
        return scores if scores.sum().item() > 0 else -scores


class Eight(Table):
    """Works for the number of samples that it is traced with, and no other."""

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch["row"].reshape(8, 3))


class Eigenvalues(Table):
    """torch.export takes it, ONNX does not."""

    def predict_step(self, batch: Any, index: int) -> Any:
        return torch.linalg.eigvalsh(batch["row"][:, :, None] * batch["row"][:, None, :])


class Random(Table):
    """Gives other outputs each time."""

    def predict_step(self, batch: Any, index: int) -> Any:
        return self.layer(batch["row"]) + torch.rand(2)
