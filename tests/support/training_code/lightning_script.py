"""Lightning's own Trainer with a DataModule over headrace's samples."""

import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from headrace import script


class Blobs(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(script.dataset("train"), batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(script.dataset("val"), batch_size=8)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)
        self.notes = Path(os.environ["HEADRACE_RUN_FOLDER"]) / f"seen-{os.environ['RANK']}"

    def training_step(self, batch, index):
        with self.notes.open("a") as file:
            file.writelines(f"{self.current_epoch} {id}\n" for id in batch["sample_id"].tolist())
        return torch.nn.functional.cross_entropy(self.layer(batch["array"]), batch["label"])

    def validation_step(self, batch, index):
        right = (self.layer(batch["array"]).argmax(1) == batch["label"]).float().mean()
        self.log("val_accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Report(Callback):
    def on_train_batch_end(self, trainer, model, outputs, *_):
        script.report(trainer.global_step, trainer.current_epoch, loss=outputs["loss"])

    def on_validation_end(self, trainer, model):
        script.report(trainer.global_step, trainer.current_epoch, **trainer.callback_metrics)


trainer = Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=int(sys.argv[1]),
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(os.environ["HEADRACE_CHECKPOINTS"], save_top_k=-1), Report()],
)
trainer.fit(Model(), datamodule=Blobs(), ckpt_path=script.newest())
