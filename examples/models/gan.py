"""A GAN: two networks with an optimizer each, stepped by hand."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid


class Gan(pl.LightningModule):
    """Learns to draw pictures of 8 x 8 pixels (Goodfellow et al., 2014).

    Args:
        latent: Numbers that a picture is drawn from.
        learning_rate: Step size of both optimizers.
    """

    def __init__(self, latent: int = 16, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.learning_rate = learning_rate
        self.generator = nn.Sequential(
            nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid()
        )
        self.discriminator = nn.Sequential(
            nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 1)
        )

    def training_step(self, batch: dict[str, Tensor], index: int) -> None:
        """One step of the discriminator, then one of the generator."""
        generating, judging = self.optimizers()
        real = batch["image"].flatten(1)
        drawn = self.generator(torch.randn(len(real), self.latent, device=self.device))

        scores = self.discriminator(torch.cat([real, drawn.detach()])).squeeze(1)
        is_real = (torch.arange(len(scores), device=self.device) < len(real)).float()
        self._step(judging, "loss_d", binary_cross_entropy_with_logits(scores, is_real))
        self._step(generating, "loss_g", -logsigmoid(self.discriminator(drawn)).mean())

    def _step(self, optimizer: torch.optim.Optimizer, name: str, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.log(name, loss)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam for each of the two networks."""
        networks = (self.generator, self.discriminator)
        return [torch.optim.Adam(each.parameters(), self.learning_rate) for each in networks]
