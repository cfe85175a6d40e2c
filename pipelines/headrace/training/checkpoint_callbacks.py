"""When checkpoints are written: by step, where a metric is best, and before the lease is over."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint

from headrace.checkpoints import files as checkpoints
from headrace.errors import HeadraceError, RecipeError, nearest
from headrace.files.atomic import read_text, write_record
from headrace.files.layout import checkpoint_name, kept_name
from headrace.recipe.train import TrainerSpec
from headrace.training.checkpoint_writer import CheckpointWriter
from headrace.training.launch_records import NodeLaunch, Paused

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 2.0


class _AfterStep(Callback):  # type: ignore[misc]
    """Does something after optimizer steps, when gradients are not half way."""

    _seen_step = 0

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Count from the step that training goes on from."""
        self._seen_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Do it when there was a step."""
        stepped, self._seen_step = trainer.global_step != self._seen_step, trainer.global_step
        if stepped:
            self.after_step(trainer)

    def after_step(self, trainer: Trainer) -> None:
        """Called after each step, also after the last of an epoch, before its validation."""
        raise NotImplementedError


class StepCheckpoints(_AfterStep, Checkpoint):  # type: ignore[misc]
    """A checkpoint after every so many optimizer steps; whole or not there.

    One that falls due on the last batch of an epoch is written after validation, when the epoch
    has ended. None is written at the very end, where the final checkpoint follows.

    `prune` is called after each, and removes those that are too old. Attributes: `waited_s`, the
    seconds that training has waited here so far.
    """

    def __init__(
        self, folder: Path, *, every_steps: int, prune: Callable[[], None], writer: CheckpointWriter
    ) -> None:
        self.folder = folder
        self.writer = writer
        self._every_steps = every_steps
        self._prune = prune
        self._saved_step = 0
        self.waited_s = 0.0
        self.metrics: dict[str, float] = {}

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
        super().on_train_start(trainer)
        self._saved_step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell what went wrong with a checkpoint, too."""
        self.writer.look()
        super().on_train_batch_end(trainer)

    def after_step(self, trainer: Trainer) -> None:
        """Write a checkpoint when one is due."""
        if self._is_due(trainer) and not trainer.is_last_batch:
            self.save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write a checkpoint that was due on the last batch."""
        ends = trainer.should_stop or trainer.current_epoch + 1 >= trainer.max_epochs
        # a scheduler that waits for a metric steps after this hook: leave it to the next batch
        waits = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
        if self._is_due(trainer) and not ends and not waits:
            self.save(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Write the final checkpoint and wait for it."""
        self._save(trainer, self.final)
        self.writer.wait()

    def on_exception(self, *_: Any) -> None:
        """Wait for the checkpoint that is being written: the next launch starts from it."""
        try:
            self.writer.wait()
        except (HeadraceError, OSError, RuntimeError):
            logger.exception("The last checkpoint was not written")

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint of this step; all ranks call this."""
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
    """Training has stopped with a checkpoint, from which another launch resumes."""


class StopInTime(_AfterStep):
    """Ends the launch with a last checkpoint before `stop_at`, seconds since the epoch.

    It ends at once if the file `notice` exists: the provider is about to take the nodes back. A new
    text in the file `at_risk` means that it may do so soon: a checkpoint is saved.

    Clocks of ranks may differ, but all ranks must stop at the same step. So rank 0 decides, and
    broadcasts about every two seconds, at a step that is known to all ranks.
    """

    def __init__(self, launch: NodeLaunch, saving: StepCheckpoints, file: Path) -> None:
        self._stop_at = math.inf if launch.stop_at is None else launch.stop_at
        self._notice = Path(launch.notice)
        self._at_risk = Path(launch.at_risk)
        self._known_risk = ""
        self._saving = saving
        self._file = file
        self._look_at_step = 0
        self._times = _StepTimes()

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Count from the step that training goes on from."""
        super().on_train_start(trainer)
        self._look_at_step = trainer.global_step

    def after_step(self, trainer: Trainer) -> None:
        """Check the clock and the files about every two seconds."""
        step = trainer.global_step
        self._times.note(time.monotonic())
        # the last step of an epoch is saved after its validation, which has not been yet
        if step < self._look_at_step or trainer.is_last_batch or trainer.should_stop:
            return
        needed_s = self._times.longest_s + 2 * self._saving.writer.longest_s + _LOOK_EVERY_S
        is_over = time.time() + needed_s > self._stop_at or _word(self._notice) is not None
        ahead = self._times.steps_in(_LOOK_EVERY_S)
        found = (is_over, self._has_new_risk(), step + ahead)
        is_over, is_at_risk, self._look_at_step = trainer.strategy.broadcast(found, 0)
        if is_over:
            self._pause(trainer)
        elif is_at_risk:
            self._saving.save(trainer)

    def _has_new_risk(self) -> bool:
        risk = _word(self._at_risk) or ""
        known, self._known_risk = self._known_risk, risk
        return risk not in ("", known)

    def _pause(self, trainer: Trainer) -> None:
        self._saving.save(trainer)
        self._saving.writer.wait()
        if trainer.is_global_zero:
            write_record(self._file, Paused(step=trainer.global_step))
        raise TrainingPausedError(f"Stopped after step {trainer.global_step}: time is over")


def _word(file: Path) -> str | None:
    """Return the text of a file that other machines write; None if it does not exist."""
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


class KeepBest(Callback):  # type: ignore[misc]
    """Writes weights after each validation, or epoch, in which the metric is better than before.

    What is on the disk counts, not what a resumed training remembers: that may have been better
    already when it was interrupted. A tie keeps the earlier one.
    """

    def __init__(self, saving: StepCheckpoints, spec: TrainerSpec) -> None:
        self._folder, self._writer = saving.folder, saving.writer
        self._metric, self._mode = spec.monitor or "", spec.monitor_mode
        self._weights_only = spec.ema is None  # Lightning puts the average into whole ones only
        self._best: float | None = None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Take what there is; a training that begins anew has none."""
        if trainer.global_step == 0 and trainer.is_global_zero:
            checkpoints.remove_weights(self._folder, "best")
        found = checkpoints.best_of(self._folder)
        known = None if found is None or found.metric != self._metric else found.value
        self._best = trainer.strategy.broadcast(known, 0)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Look at the metric."""
        self._look(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Look at the metric, which training may log as well; it must be there by now."""
        every = trainer.check_val_every_n_epoch or 1
        if (trainer.current_epoch + 1) % every == 0 and not self._look(trainer):
            raise RecipeError(
                f"trainer.monitor names '{self._metric}', which the model does not log",
                nearest(self._metric, trainer.callback_metrics)
                or "Log it in validation_step: self.log(…).",
            )

    def _look(self, trainer: Trainer) -> bool:
        """Write weights if the metric is better; return whether it was logged."""
        found = trainer.callback_metrics.get(self._metric)
        if found is None:
            return False
        value = float(trainer.strategy.reduce(found.detach().clone(), reduce_op="mean"))
        best = self._best
        is_better = best is None or (value < best if self._mode == "min" else value > best)
        if is_better and not math.isnan(value):
            self._best = value
            self._write(trainer, value)
        return True

    def _write(self, trainer: Trainer, value: float) -> None:
        step = trainer.global_step
        path = self._folder / checkpoints.best_name_of(step)
        best = checkpoints.BestCheckpoint(
            file=path.name, metric=self._metric, value=value, epoch=trainer.current_epoch, step=step
        )

        def finish() -> None:
            write_record(self._folder / checkpoints.BEST, best)
            checkpoints.remove_weights(self._folder, "best", but=path)

        self._writer.write(trainer, path, weights_only=self._weights_only, then=finish)


class KeepSteps(_AfterStep):
    """Writes weights after the optimizer steps that are evaluated later; they are never pruned.

    Steps of all optimizers count, as in Lightning.
    """

    def __init__(self, saving: StepCheckpoints, spec: TrainerSpec, steps: Collection[int]) -> None:
        self._folder, self._writer = saving.folder, saving.writer
        self._weights_only = spec.ema is None  # as in `KeepBest`
        self._steps = steps

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Remove kept weights if training starts from the beginning."""
        super().on_train_start(trainer)
        if trainer.global_step == 0 and trainer.is_global_zero:
            checkpoints.remove_weights(self._folder, "kept")

    def after_step(self, trainer: Trainer) -> None:
        """Write the weights, also before validation and before training ends."""
        if trainer.global_step in self._steps:
            path = self._folder / kept_name(trainer.global_step)
            self._writer.write(trainer, path, weights_only=self._weights_only)
