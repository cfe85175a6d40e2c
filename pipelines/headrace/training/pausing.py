"""Stops training with a checkpoint before the lease's time is over, on all ranks at one step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.storage.atomic import write_record
from headrace.training.checkpointing import StepCheckpoints
from headrace.training.records import Paused

_LOOK_EVERY_S = 2.0


class TrainingPausedError(Exception):
    """Training has stopped with a checkpoint; another launch goes on from there."""


class StopInTime(Callback):  # type: ignore[misc]
    """Ends the launch in time for a last checkpoint.

    The ranks' clocks may differ, and ranks must not part: rank 0 decides, and tells the others
    every two seconds or so, at a step that all of them know.

    Args:
        stop_at: When all must be over, seconds since the epoch; None for never.
        saving: Writes checkpoints.
        file: Where rank 0 tells of it.
    """

    def __init__(self, stop_at: float | None, saving: StepCheckpoints, file: Path) -> None:
        self._stop_at = stop_at
        self._saving = saving
        self._file = file
        self._seen_step = self._look_at_step = 0
        self._times = StepTimes()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the step that training goes on from."""
        del pl_module
        self._seen_step = self._look_at_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Look at the clock now and then.

        Raises:
            TrainingPausedError: Time is over; a checkpoint of this step is there.
        """
        del pl_module, outputs, batch, batch_idx
        step = trainer.global_step
        if self._stop_at is None or step == self._seen_step:  # gradients may be half way
            return
        self._seen_step = step
        self._times.note(time.monotonic())
        # the last step of an epoch is saved after its validation, which has not been yet
        if step < self._look_at_step or trainer.is_last_batch or trainer.should_stop:
            return
        needed_s = self._times.longest_s + 2 * self._saving.longest_s + _LOOK_EVERY_S
        is_over = time.time() + needed_s > self._stop_at
        ahead = self._times.steps_in(_LOOK_EVERY_S)
        is_over, self._look_at_step = trainer.strategy.broadcast((is_over, step + ahead), 0)
        if is_over:
            self._pause(trainer)

    def _pause(self, trainer: Trainer) -> None:
        self._saving.save(trainer)
        if trainer.is_global_zero:
            write_record(self._file, Paused(step=trainer.global_step))
        raise TrainingPausedError(f"Stopped after step {trainer.global_step}: time is over")


class StepTimes:
    """How long optimizer steps take, with what comes between them, such as validation."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._first_s = self._last_s = 0.0
        self._num_steps = 0

    def note(self, now_s: float) -> None:
        """A step has just ended."""
        if self._num_steps:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        else:
            self._first_s = now_s
        self._last_s = now_s
        self._num_steps += 1

    def steps_in(self, seconds: float) -> int:
        """Steps that so much time is good for, at least one."""
        elapsed_s = self._last_s - self._first_s
        if elapsed_s <= 0:
            return 1
        return max(1, int(seconds * (self._num_steps - 1) / elapsed_s))
