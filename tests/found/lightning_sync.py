"""A Lightning script in the usual manner, on as many processes as it is started with."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("val_loss", loss, sync_dist=True)

    def on_train_epoch_end(self):
        self.log("num_ranks", self.all_gather(torch.ones(1)).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=3,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), data, data)
