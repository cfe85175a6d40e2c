"""Lightning's DataModule over a packed dataset, in headrace's global order."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from headrace.data.batch_form import formed, transformed
from headrace.data.device_decode import DeviceDecoder, decoder_in, note_change
from headrace.data.device_tier import DeviceTier
from headrace.data.loader import BatchLoader
from headrace.data.loaders import DataSettings, Loaders
from headrace.data.sampling import seed_at
from headrace.data.transforms import Batch
from headrace.errors import StepError


class HeadraceDataModule(LightningDataModule):  # type: ignore[misc]
    """Training and validation batches of one rank.

    Transforms run after the batch is on the model's device, so that small integers are moved and
    the accelerator converts them.
    """

    def __init__(self, settings: DataSettings) -> None:
        super().__init__()
        self.settings = settings
        self._loaders = Loaders(settings)
        self.train_loader = self._loaders.train
        self.manifest = self.train_loader.dataset.manifest
        self.notes, tier = self.train_loader.notes, settings.gpu_tier
        self.tier = DeviceTier(tier, self.train_loader, settings.reading) if tier else None

    @property
    def has_validation(self) -> bool:
        """Whether the dataset has samples to validate on."""
        return self._loaders.has_validation

    def train_dataloader(self) -> BatchLoader:
        """Return batches to train on; the same loader each time, so its position can be read."""
        return self.train_loader

    def val_dataloader(self) -> BatchLoader | list[BatchLoader]:
        """Return batches to validate on; an empty list if the dataset has none."""
        return self._loaders.validation() if self.has_validation else []

    def setup(self, stage: str) -> None:
        """Open the decoder, now that the device is known."""
        if isinstance(self.settings.reading.decoder, DeviceDecoder):
            self.settings.reading.decoder.open(self.trainer.strategy.root_device, self.notes)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in training, and what decoded the images.

        Lightning keeps a loader's position too, but does not restore it if the model has read
        `estimated_stepping_batches`.
        """
        kind, decoder = self._loaders.epochs.kind, decoder_in(self.notes)
        return {"position": self.train_loader.state_dict(), "order": kind, "decoder": decoder}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to a checkpoint's position; raise `StepError` inside an epoch of another order."""
        position, kind = state_dict["position"], state_dict["order"]
        if position["global_index"] and kind != self._loaders.epochs.kind:
            raise StepError(
                f"The checkpoint lies in the middle of an epoch of {kind}; this training takes "
                f"{self._loaders.epochs.kind}",
                "Resume with the dataset, seed, data.shuffle_window and data.sampling of the "
                "checkpoint.",
            )
        self.train_loader.load_state_dict(position)
        note_change(self.notes, state_dict)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Any:
        """Apply transforms, and augmentation with random numbers of this position in training.

        Returns the batch in the form of `data.batch`.
        """
        del dataloader_idx
        batch = transformed(batch, self.settings.transforms)
        trainer = self.trainer
        trains = trainer is not None and trainer.training
        if trains and self.tier is not None:
            self.tier.look(trainer.global_step, trainer.strategy.root_device)
        if trains and self.settings.augment:
            position = self.train_loader.state_dict()
            seed_at(
                self.settings.seed,
                position["epoch"],
                position["global_index"] // self.train_loader.order.batch_span,
                self.settings.rank,
                "augment",
            )
            batch = transformed(batch, self.settings.augment)
        return formed(batch, self.settings.spec.batch)
