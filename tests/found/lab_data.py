"""In the manner of a laboratory's own package: a DataModule with loaders of its own."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class OwnDataModule(L.LightningDataModule):
    def __init__(self, train_path: str, batch_size: int = 8, num_workers: int = 0) -> None:
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(256, 8, generator=generator)
        y = (x[:, :3]).argmax(dim=1)
        self.train, self.val = TensorDataset(x[:200], y[:200]), TensorDataset(x[200:], y[200:])

    def train_dataloader(self):
        return DataLoader(
            self.train,
            batch_size=self.hparams.batch_size,
            shuffle=True,
            num_workers=self.hparams.num_workers,
        )

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.hparams.batch_size)
