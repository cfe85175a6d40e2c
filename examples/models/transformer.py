"""A small language model of bytes."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


class ByteTransformer(pl.LightningModule):
    """Predicts the next byte of lines of a fixed length.

    Args:
        length: Bytes of a line, less one.
        width: Length of the vectors.
        num_layers: Blocks of attention.
        learning_rate: Step size of AdamW.
    """

    def __init__(
        self, length: int = 64, width: int = 64, num_layers: int = 2, learning_rate: float = 2e-3
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.byte = nn.Embedding(256, width)
        self.place = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(num_layers)
        )
        self.head = nn.Linear(width, 256)

    def forward(self, line: Tensor) -> Tensor:
        """Scores of the next byte `(batch, length, 256)` after each of `(batch, length)`."""
        places = torch.arange(line.shape[1], device=line.device)
        vectors = self.byte(line) + self.place(places)
        mask = nn.Transformer.generate_square_subsequent_mask(line.shape[1], device=line.device)
        for block in self.blocks:
            vectors = block(vectors, src_mask=mask, is_causal=True)
        return self.head(vectors)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Mean loss of the bytes."""
        return self._loss(batch)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """As in training."""
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def _loss(self, batch: dict[str, Tensor]) -> Tensor:
        lines = batch["array"].long()
        return cross_entropy(self(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten())

    def predict_step(self, batch: dict[str, Tensor], index: int) -> dict[str, Tensor]:
        """Scores and bytes, as torchmetrics' perplexity takes them."""
        lines = batch["array"].long()
        return {"preds": self(lines[:, :-1]), "target": lines[:, 1:]}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
