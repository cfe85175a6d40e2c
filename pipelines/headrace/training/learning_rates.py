"""Callbacks that scale learning rates and average weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder
from torch.optim import Optimizer

from headrace.recipe.train import ScaleLrSpec, TrainerSpec


def scaling_callbacks(spec: TrainerSpec, global_batch_size: int) -> list[Callback]:
    """Return the callbacks for keys of a recipe; they come before those that save."""
    found: list[Callback] = []
    if spec.scale_lr is not None:
        found.append(ScaledRate(spec.scale_lr, global_batch_size))
    if spec.ema is not None:
        found.append(
            EMAWeightAveraging(
                decay=spec.ema.decay,
                update_every_n_steps=spec.ema.every,
                update_starting_at_step=spec.ema.start,
            )
        )
    return found


def rate_factor(trainer: Trainer) -> float:
    """Return the factor of learning rates in this step."""
    scaled = [each for each in trainer.callbacks if isinstance(each, ScaledRate)]
    return scaled[0].factor(trainer.global_step) if scaled else 1.0


def look_no_more(callbacks: Iterable[Callback]) -> None:
    """Disable Lightning's finders of learning rates when a training is resumed.

    The checkpoint holds the rate, and trial steps in the middle of a training would change it.
    """
    for each in callbacks:
        if isinstance(each, LearningRateFinder):
            each.on_fit_start = lambda *_: None


class ScaledRate(Callback):  # type: ignore[misc]
    """Multiplies all learning rates only during an optimizer's step.

    So it works with any scheduler, and checkpoints hold the rates of the model and scheduler.
    """

    def __init__(self, spec: ScaleLrSpec, global_batch_size: int) -> None:
        ratio = global_batch_size / spec.base_batch_size
        self._whole = ratio if spec.rule == "linear" else math.sqrt(ratio)
        self._warmup_steps = spec.warmup_steps

    def factor(self, step: int) -> float:
        """Return the factor after a number of optimizer steps."""
        if step >= self._warmup_steps:
            return self._whole
        return 1 + (self._whole - 1) * step / self._warmup_steps

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Register hooks before and after each step of the optimizers."""
        for optimizer in trainer.optimizers:
            self._attend(trainer, optimizer)

    def _attend(self, trainer: Trainer, optimizer: Optimizer) -> None:
        given: list[Any] = []

        def before(*_: Any) -> None:
            factor = self.factor(trainer.global_step)
            given[:] = [(group, group["lr"]) for group in optimizer.param_groups if "lr" in group]
            for group, rate in given:
                group["lr"] = rate * factor

        def after(*_: Any) -> None:
            for group, rate in given:
                group["lr"] = rate

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
