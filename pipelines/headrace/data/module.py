"""Lightning's DataModule over a packed dataset, in headrace's global order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from headrace.data.dataset import Reading
from headrace.data.loader import BatchLoader
from headrace.data.order import EachOnceOrder, Order, TrainOrder, choose_epochs
from headrace.data.sampling import seed_at
from headrace.data.streaming import check_streamable
from headrace.data.transforms import Batch, Transform, apply
from headrace.errors import StepError
from headrace.recipe.dataset import TRAIN, VALIDATION
from headrace.recipe.recipe import DataSpec
from headrace.shards.dataset import ShardedDataset
from headrace.shards.places import ShardSource


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What a rank needs to know to read its share."""

    folder: Path
    """Folder of the dataset, packed or staged."""
    spec: DataSpec
    """The recipe's `data`."""
    seed: int
    """Seed of the run."""
    rank: int = 0
    """Rank, from 0."""
    world_size: int = 1
    """Number of ranks."""
    transforms: tuple[Transform, ...] = ()
    """Applied to every batch."""
    augment: tuple[Transform, ...] = ()
    """Applied to training batches, after `transforms`."""
    reading: Reading = field(default_factory=Reading)
    """How samples become batches."""
    source: ShardSource | None = None
    """Where shards come from that are not in `folder`."""
    skipped: tuple[str, ...] = ()
    """Files of damaged shards that are left out."""
    overlap: bool = False
    """Whether epoch 0 may start before all shards are there, see `stage.overlap`."""
    accumulate: int = 1
    """Batches an optimizer step."""
    num_epochs: int | None = None
    """Epochs there will be, so that nothing is fetched for one more; null: unknown."""


class HeadraceDataModule(LightningDataModule):  # type: ignore[misc]
    """Training and validation batches of one rank.

    Transforms run after the batch is on the model's device, so that small integers travel and
    the accelerator converts them.
    """

    def __init__(self, settings: DataSettings) -> None:
        super().__init__()
        self.settings = settings
        dataset = self._split(TRAIN)
        self._epochs = choose_epochs(dataset, settings.spec, settings.seed, settings.overlap)
        check_streamable(dataset, settings.spec)
        order = TrainOrder(
            num_samples=self._epochs.num_samples,
            seed=settings.seed,
            global_batch_size=settings.spec.global_batch_size,
            accumulate=settings.accumulate,
            rank=settings.rank,
            world_size=settings.world_size,
            drop_last=settings.spec.drop_last,
            epochs=self._epochs,
        )
        self.train_loader = self._loader(dataset, order)
        self.manifest = self.train_loader.dataset.manifest

    @property
    def has_validation(self) -> bool:
        """Whether the dataset has samples to validate on."""
        return self.manifest.splits.get(VALIDATION, 0) > 0

    def train_dataloader(self) -> BatchLoader:
        """Batches to train on; the same loader each time, so that its position can be read."""
        return self.train_loader

    def val_dataloader(self) -> BatchLoader | list[BatchLoader]:
        """Batches to validate on; an empty list when the dataset has none."""
        if not self.has_validation:
            return []
        dataset = self._split(VALIDATION)
        order = EachOnceOrder(
            num_samples=len(dataset),
            global_batch_size=self.train_loader.order.batch_span,
            rank=self.settings.rank,
            world_size=self.settings.world_size,
        )
        return self._loader(dataset, order)

    def _split(self, name: str) -> ShardedDataset:
        told = self.settings
        return ShardedDataset(told.folder, name, told.source, told.spec.fold, told.skipped)

    def _loader(self, dataset: ShardedDataset, order: Order) -> BatchLoader:
        told, prefetch = self.settings, self.settings.spec.prefetch
        return BatchLoader(
            dataset, order, prefetch=prefetch, reading=told.reading, num_epochs=told.num_epochs
        )

    def state_dict(self) -> dict[str, Any]:
        """Position in training.

        Lightning keeps a loader's position too, but forgets to restore it when the model has
        asked for `estimated_stepping_batches`.
        """
        return {"position": self.train_loader.state_dict(), "order": self._epochs.kind}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the position of a checkpoint; a `StepError` within an epoch of another order."""
        position, kind = state_dict["position"], state_dict["order"]
        if position["global_index"] and kind != self._epochs.kind:
            raise StepError(
                f"The checkpoint lies in the middle of an epoch of {kind}; this training takes "
                f"{self._epochs.kind}",
                "Resume with the dataset, seed, data.shuffle_window and data.sampling of the "
                "checkpoint.",
            )
        self.train_loader.load_state_dict(position)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Transforms, and augmentation with random numbers of this place in training."""
        del dataloader_idx
        batch = apply(self.settings.transforms, batch)
        trainer = self.trainer
        if self.settings.augment and trainer is not None and trainer.training:
            position = self.train_loader.state_dict()
            seed_at(
                self.settings.seed,
                position["epoch"],
                position["global_index"] // self.train_loader.order.batch_span,
                self.settings.rank,
                "augment",
            )
            batch = apply(self.settings.augment, batch)
        return batch
