"""A DataModule of Lightning's over headrace's samples, as `CHECKS` of the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from headrace.data.dataset import SampleDataset
from support.scale_models import Small, check
from support.shards import write_dataset


class Backwards(Sampler[int]):
    """Knows nothing of ranks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        return iter(range(self.count - 1, -1, -1))


class Samples(LightningDataModule):
    """Loaders as one writes them."""

    def __init__(self, folder: Path, own: bool) -> None:
        super().__init__()
        self.folder, self.own = folder, own

    def train_dataloader(self) -> Any:
        samples = SampleDataset(self.folder, "train")
        sampling: dict[str, Any] = {"sampler": Backwards(len(samples))} if self.own else {}
        return DataLoader(samples, 4, shuffle=None if self.own else True, **sampling)

    def val_dataloader(self) -> Any:
        return DataLoader(SampleDataset(self.folder, "val"), 4)


class Seeing(Small):
    """Notes which samples it got."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[int]] = {"train": [], "val": []}

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:  # type: ignore[override]
        self.seen["train"] += batch["sample_id"].tolist()
        return super().training_step((batch["array"], batch["array"][:, :1]), index)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        del index
        self.seen["val"] += batch["sample_id"].tolist()


@check
def datamodule(folder: Path) -> dict[str, Any]:
    """Samples of two epochs and validations, with Lightning's own Trainer."""
    place, found = folder / "samples", {}
    if dist.get_rank() == 0:
        values = np.random.default_rng(1).normal(size=(25, 16)).astype(np.float32)
        write_dataset(place, {"array": values}, splits={"train": 20, "val": 5}, shard_samples=6)
    dist.barrier()
    for own in (False, True):
        torch.manual_seed(dist.get_rank())  # ranks agree all the same
        model = Seeing()
        trainer = Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, num_sanity_val_steps=0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, datamodule=Samples(place, own))
        found[own] = model.seen
    return {"found": found}
