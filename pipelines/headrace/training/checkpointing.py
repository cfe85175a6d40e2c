"""When checkpoints are written: by optimizer step, at the end, and before the lease is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor
from torch.distributed.tensor import DTensor

from headrace.files.atomic import read_text, write_record
from headrace.files.layout import checkpoint_name
from headrace.training import checkpoints
from headrace.training.checkpoint_writer import CheckpointWriter
from headrace.training.records import NodeLaunch, Paused

_LOOK_EVERY_S = 2.0


class StepCheckpoints(Checkpoint):  # type: ignore[misc]
    """A checkpoint after every so many optimizer steps; whole or not there.

    One that falls due on the last batch of an epoch is written after validation, when the epoch
    has ended. None is written at the very end, where the final checkpoint follows.

    Args:
        folder: Where checkpoints lie.
        every_steps: Optimizer steps between two.
        prune: Called after each; removes those that are too old.
        writer: Writes them.

    Attributes:
        waited_s: Seconds that training has waited here so far.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_steps: int,
        prune: Callable[[], None],
        writer: CheckpointWriter,
    ) -> None:
        self.folder = folder
        self.writer = writer
        self._every_steps = every_steps
        self._prune = prune
        self._saved_step = 0
        self._seen_step = 0
        self.waited_s = 0.0
        self.metrics: dict[str, float] = {}

    @property
    def longest_s(self) -> float:
        """Longest time that a checkpoint has taken here."""
        return self.writer.longest_s

    @property
    def final(self) -> Path:
        """Checkpoint of the trained model."""
        return self.folder / checkpoints.FINAL

    def state_dict(self) -> dict[str, Any]:
        """Metrics logged so far, since Lightning forgets them over a resume."""
        return {"metrics": self.metrics}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the metrics of the interrupted run."""
        self.metrics = dict(state_dict["metrics"])

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Count from the step that training goes on from."""
        self._saved_step = self._seen_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write a checkpoint when one is due and gradients are not half way."""
        self.writer.look()
        stepped, self._seen_step = trainer.global_step != self._seen_step, trainer.global_step
        if stepped and self._is_due(trainer) and not trainer.is_last_batch:
            self.save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write one that fell due on the last batch."""
        ends = trainer.should_stop or trainer.current_epoch + 1 >= trainer.max_epochs
        # a scheduler that waits for a metric steps after this hook: leave it to the next batch
        waits = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
        if self._is_due(trainer) and not ends and not waits:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the final checkpoint, to the end."""
        self._save(trainer, self.final)
        self.writer.settle()

    def on_exception(self, *_: Any) -> None:
        """Let the checkpoint that is being written become whole: the next launch goes on there."""
        self.writer.give_up()

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint of this step, together with all other ranks."""
        self._save(trainer, self.folder / checkpoint_name(trainer.global_step))

    def _is_due(self, trainer: Trainer) -> bool:
        every = self._every_steps
        return bool(trainer.global_step // every > self._saved_step // every)

    def _save(self, trainer: Trainer, path: Path) -> None:
        began_s = time.monotonic()
        self.metrics |= {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.writer.write(trainer, path, then=self._prune)
        self.waited_s += time.monotonic() - began_s
        self._saved_step = trainer.global_step


class TrainingPausedError(Exception):
    """Training has stopped with a checkpoint; another launch goes on from there."""


class StopInTime(Callback):  # type: ignore[misc]
    """Ends the launch with a last checkpoint before `stop_at`, seconds since the epoch.

    It ends at once when the file `notice` is there: the nodes are about to be taken away. When
    `at_risk` is there, or says something new, they may be soon: a checkpoint is saved meanwhile.

    The ranks' clocks may differ, and ranks must not part: rank 0 decides, and tells the others
    every two seconds or so, at a step that all of them know.
    """

    def __init__(self, launch: NodeLaunch, saving: StepCheckpoints, file: Path) -> None:
        self._stop_at = math.inf if launch.stop_at is None else launch.stop_at
        self._notice = Path(launch.notice)
        self._at_risk = Path(launch.at_risk)
        self._known_risk = ""
        self._saving = saving
        self._file = file
        self._seen_step = self._look_at_step = 0
        self._times = _StepTimes()

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Count from the step that training goes on from."""
        self._seen_step = self._look_at_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Look at the clock now and then."""
        step = trainer.global_step
        if step == self._seen_step:  # gradients may be half way
            return
        self._seen_step = step
        self._times.note(time.monotonic())
        # the last step of an epoch is saved after its validation, which has not been yet
        if step < self._look_at_step or trainer.is_last_batch or trainer.should_stop:
            return
        needed_s = self._times.longest_s + 2 * self._saving.longest_s + _LOOK_EVERY_S
        is_over = time.time() + needed_s > self._stop_at or _word(self._notice) is not None
        ahead = self._times.steps_in(_LOOK_EVERY_S)
        found = (is_over, self._has_new_risk(), step + ahead)
        is_over, is_at_risk, self._look_at_step = trainer.strategy.broadcast(found, 0)
        if is_over:
            self._pause(trainer)
        elif is_at_risk:
            self._saving.save(trainer)

    def _has_new_risk(self) -> bool:
        told = _word(self._at_risk) or ""
        known, self._known_risk = self._known_risk, told
        return told not in ("", known)

    def _pause(self, trainer: Trainer) -> None:
        self._saving.save(trainer)
        self._saving.writer.settle()
        if trainer.is_global_zero:
            write_record(self._file, Paused(step=trainer.global_step))
        raise TrainingPausedError(f"Stopped after step {trainer.global_step}: time is over")


def _word(file: Path) -> str | None:
    """What a file says that other machines may write; None when it is not there, or has no name."""
    return read_text(file) if file.name else None


class _StepTimes:
    """How long optimizer steps take, with what comes between them, such as validation."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._first_s = self._last_s = 0.0
        self._num_steps = 0

    def note(self, now_s: float) -> None:
        if self._num_steps:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        else:
            self._first_s = now_s
        self._last_s = now_s
        self._num_steps += 1

    def steps_in(self, seconds: float) -> int:
        elapsed_s = self._last_s - self._first_s
        if elapsed_s <= 0:
            return 1
        return max(1, int(seconds * (self._num_steps - 1) / elapsed_s))


def weights_hash(state: Mapping[str, Tensor]) -> str:
    """XXH3 of a `state_dict()`, 128 bits, hexadecimal; the same whatever device it is on.

    It is over name, dtype, shape and bytes of each, in order of names. All ranks must call it when
    they share them out.
    """
    digest = xxhash.xxh3_128()
    for name in sorted(state):
        values = _whole(state[name]).detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
