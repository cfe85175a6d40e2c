"""Keeps weights to be evaluated: where a metric is best, and after steps that a recipe names."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from lightning.pytorch import Callback, Trainer

from headrace.errors import RecipeError, nearest
from headrace.files.atomic import write_record
from headrace.files.layout import kept_name
from headrace.recipe.train import TrainerSpec
from headrace.training import checkpoints
from headrace.training.checkpointing import StepCheckpoints
from headrace.training.chosen import best_of
from headrace.training.records import BestCheckpoint


class KeepBest(Callback):  # type: ignore[misc]
    """Writes weights after each validation, or epoch, in which the metric is better than before.

    What is on the disk counts, not what a resumed training remembers: that may have been better
    already when it was interrupted. A tie keeps the earlier one.

    Args:
        saving: How checkpoints are written, and where.
        spec: Names the metric, `monitor`, and in which direction it is better, `monitor_mode`.
    """

    def __init__(self, saving: StepCheckpoints, spec: TrainerSpec) -> None:
        self._folder, self._writer = saving.folder, saving.writer
        self._metric, self._mode = spec.monitor or "", spec.monitor_mode
        self._weights_only = spec.ema is None  # Lightning puts the average into whole ones only
        self._best: float | None = None

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Take what there is; a training that begins anew has none."""
        if trainer.global_step == 0 and trainer.is_global_zero:
            checkpoints.remove_weights(self._folder, "best", lambda _: True)
        found = best_of(self._folder)
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
        """Write when the metric is better; whether there is one."""
        found = trainer.callback_metrics.get(self._metric)
        if found is None:
            return False
        value = float(trainer.strategy.reduce(found.detach().clone(), reduce_op="mean"))
        if self._is_better(value):
            self._best = value
            self._write(trainer, value)
        return True

    def _is_better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self._best is None:
            return True
        return value < self._best if self._mode == "min" else value > self._best

    def _write(self, trainer: Trainer, value: float) -> None:
        step = trainer.global_step
        path = self._folder / checkpoints.best_name_of(step)
        best = BestCheckpoint(
            file=path.name,
            metric=self._metric,
            value=value,
            epoch=trainer.current_epoch,
            step=step,
        )

        def told() -> None:
            write_record(self._folder / checkpoints.BEST, best)
            checkpoints.remove_weights(self._folder, "best", lambda of: of != step)

        self._writer.write(trainer, path, weights_only=self._weights_only, then=told)


class KeepSteps(Callback):  # type: ignore[misc]
    """Writes weights after the optimizer steps that are evaluated later; they are never pruned.

    Args:
        saving: How checkpoints are written, and where.
        spec: Tells whether the weights are an average.
        steps: Counted as Lightning does: those of all optimizers.
    """

    def __init__(self, saving: StepCheckpoints, spec: TrainerSpec, steps: Collection[int]) -> None:
        self._folder, self._writer = saving.folder, saving.writer
        self._weights_only = spec.ema is None  # as in `KeepBest`
        self._steps = steps
        self._seen_step = 0

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """A training that begins anew has none."""
        self._seen_step = trainer.global_step
        if trainer.global_step == 0 and trainer.is_global_zero:
            checkpoints.remove_weights(self._folder, "kept", lambda _: True)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Write them, also before validation and before training ends."""
        stepped, self._seen_step = trainer.global_step != self._seen_step, trainer.global_step
        if stepped and self._seen_step in self._steps:
            path = self._folder / kept_name(self._seen_step)
            self._writer.write(trainer, path, weights_only=self._weights_only)
