"""User code of the training tests: a model that notes what it saw, and fails when told to."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

_UNUSED = {"scipy.signal", "sklearn", "dask", "distributed"}
"""Modules that no rank needs, each of which takes it a second to import."""

_LEFT_OPEN = {}
"""A file that nobody closes or flushes, as in many a script."""


class BlobModel(LightningModule):
    """Classifies vectors of eight numbers.

    Args:
        notes: Folder for one file a rank: a line for each batch trained.
        dies: `[rank, step]` pairs at which that rank kills itself, each once.
        raises_at: Step in which rank 1 raises.
        exits_at: Step in which rank 1 leaves as if all were well.
        quits_at: Step in which rank 1 does so without a word to Python.
        hangs_at: Step in which rank 1 sleeps for ever.
        skips_at: Step in which rank 1 leaves out a barrier that the others wait at.
        nan_at: Step whose loss is NaN.
        pause_s: Sleep in each step.
        width: Hidden units.
        holds: Steps in which each rank waits for a file `go-<step>` beside its notes.
    """

    def __init__(
        self,
        notes,
        dies=(),
        raises_at=0,
        hangs_at=0,
        nan_at=0,
        pause_s=0.0,
        exits_at=0,
        quits_at=0,
        holds=(),
        width=16,
        skips_at=0,
    ):
        super().__init__()
        self.holds = tuple(holds)
        self.notes = Path(notes)
        self.dies = [tuple(each) for each in dies]
        self.raises_at, self.hangs_at, self.nan_at = raises_at, hangs_at, nan_at
        self.pause_s, self.exits_at, self.skips_at = pause_s, exits_at, skips_at
        self.quits_at = quits_at
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, array):
        hidden = nn.functional.dropout(self.first(array).relu(), 0.3, self.training)
        return self.second(hidden)

    def training_step(self, batch, index):
        step = self.global_step + 1
        self.note(batch, step)
        self.misbehave(step)
        loss = nn.functional.cross_entropy(self(batch["array"]), batch["label"])
        self.log("train/loss", loss)
        return loss * float("nan") if step == self.nan_at else loss

    def validation_step(self, batch, index):
        right = (self(batch["array"]).argmax(1) == batch["label"]).float().mean()
        self.log("val/accuracy", right, batch_size=len(batch["label"]), sync_dist=True)

    def predict_step(self, batch, index):
        return self(batch["array"])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def note(self, batch, step):
        line = {
            "step": step,
            "epoch": self.current_epoch,
            "samples": batch["sample_id"].tolist(),
            "pid": os.getpid(),
            "modules": sorted(_UNUSED & set(sys.modules)),
        }
        with (self.notes / f"rank-{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if not _LEFT_OPEN:
            _LEFT_OPEN["file"] = (self.notes / f"left-open-{self.global_rank}").open("a")
        _LEFT_OPEN["file"].write(f"{step}\n")

    def misbehave(self, step):
        if (self.global_rank, step) in self.dies:
            mark = self.notes / f"died-{self.global_rank}-{step}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.global_rank == 1 and step == self.raises_at:
            raise ValueError("the blobs are too round")
        if self.global_rank == 1 and step == self.exits_at:
            sys.exit(0)
        if self.global_rank == 1 and step == self.quits_at:
            os._exit(0)
        if self.global_rank == 1 and step == self.hangs_at:
            time.sleep(3600)
        if self.global_rank != 1 and step == self.skips_at:
            torch.distributed.barrier()
        if step in self.holds:
            (self.notes / f"held-{step}").touch()
            while not (self.notes / f"go-{step}").exists():
                time.sleep(0.02)
        time.sleep(self.pause_s)


class OwnBest(ModelCheckpoint):
    """For recipes: a model's callbacks replace those of their own class or one above it."""


class KeepingModel(BlobModel):
    """Keeps its best weights itself, besides what a recipe asks for."""

    def configure_callbacks(self):
        return [ModelCheckpoint(monitor="val/accuracy", mode="max", save_last=True)]
