"""Writes checkpoints by optimizer step, and the final one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from headrace.data.checkpoint_content import check_can_be_loaded
from headrace.errors import PickledCheckpointError, StorageFullError
from headrace.storage.room import free_bytes, is_full
from headrace.training import checkpoints

_Batch = Any


class StepCheckpoints(Checkpoint):  # type: ignore[misc]
    """A checkpoint after every so many optimizer steps; whole or not there.

    One that falls due on the last batch of an epoch is written after validation, when the epoch
    has ended. None is written at the very end, where the final checkpoint follows.

    Args:
        folder: Where checkpoints lie.
        every_steps: Optimizer steps between two.
        prune: Called after each; removes those that are too old.
        token: Unique to this launch; names temporary files, the same on all ranks.
        before: Called before each; raises when the state must not be kept.
        plain: Whether they may hold plain values and tensors only.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_steps: int,
        prune: Callable[[], None],
        token: str,
        before: Callable[[], None],
        plain: bool = True,
    ) -> None:
        self._folder = folder
        self._every_steps = every_steps
        self._prune = prune
        self._token = token
        self._before = before
        self._is_unchecked = plain
        self._saved_step = 0
        self._seen_step = 0
        self.metrics: dict[str, float] = {}
        self.longest_s = 0.0

    @property
    def final(self) -> Path:
        """Checkpoint of the trained model."""
        return self._folder / checkpoints.FINAL

    def state_dict(self) -> dict[str, Any]:
        """Metrics logged so far, since Lightning forgets them over a resume."""
        return {"metrics": self.metrics}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the metrics of the interrupted run."""
        self.metrics = dict(state_dict["metrics"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the step that training goes on from."""
        del pl_module
        self._saved_step = self._seen_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: _Batch,
        batch_idx: int,
    ) -> None:
        """Write a checkpoint when one is due and gradients are not half way."""
        del pl_module, outputs, batch, batch_idx
        stepped, self._seen_step = trainer.global_step != self._seen_step, trainer.global_step
        if stepped and self._is_due(trainer) and not trainer.is_last_batch:
            self.save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write one that fell due on the last batch."""
        del pl_module
        ends = trainer.should_stop or trainer.current_epoch + 1 >= trainer.max_epochs
        # a scheduler that waits for a metric steps after this hook: leave it to the next batch
        waits = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
        if self._is_due(trainer) and not ends and not waits:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the final checkpoint."""
        del pl_module
        self._save(trainer, self.final)

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint of this step, together with all other ranks."""
        self._save(trainer, self._folder / checkpoints.name_of(trainer.global_step))

    def _is_due(self, trainer: Trainer) -> bool:
        every = self._every_steps
        return bool(trainer.global_step // every > self._saved_step // every)

    def _save(self, trainer: Trainer, path: Path) -> None:
        self._before()
        began_s = time.monotonic()
        self.metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
        prepared = path.with_name(f".{path.name}.{self._token}.partial")
        try:
            trainer.save_checkpoint(prepared, weights_only=False)
        except OSError as error:
            checkpoints.remove(prepared)  # the step's own records may need the room
            if is_full(error):
                raise _no_room(path) from error
            raise
        if trainer.is_global_zero:
            self._check(trainer, prepared)
            checkpoints.publish(prepared, path)
            self._prune()
        self._saved_step = trainer.global_step
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _check(self, trainer: Trainer, prepared: Path) -> None:
        """Make sure of the first that it can be loaded: not at the resume, days later."""
        if not self._is_unchecked:
            return
        try:
            check_can_be_loaded(prepared, trainer._checkpoint_connector.dump_checkpoint)  # noqa: SLF001
        except PickledCheckpointError:
            checkpoints.remove(prepared)
            raise
        self._is_unchecked = False


def _no_room(path: Path) -> StorageFullError:
    return StorageFullError(
        f"The checkpoint {path} could not be written: its disk or quota is full, "
        f"{free_bytes(path.parent):,} bytes are free without it",
        "Free some space there; training goes on from the checkpoint before it.",
    )
