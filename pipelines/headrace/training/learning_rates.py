"""Callbacks for learning rates, which may be scaled or looked for, and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateFinder
from torch.optim import Optimizer

from headrace.recipe.train import ScaleLrSpec, TrainerSpec


def scaling_callbacks(spec: TrainerSpec, global_batch_size: int) -> list[Callback]:
    """Callbacks that the keys of a recipe ask for; they come before those that save."""
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
    """What learning rates are multiplied with in this step."""
    scaled = [each for each in trainer.callbacks if isinstance(each, ScaledRate)]
    return scaled[0].factor(trainer.global_step) if scaled else 1.0


def look_no_more(callbacks: Iterable[Callback]) -> None:
    """Have Lightning's finders of learning rates do nothing, as where a training goes on.

    The checkpoint holds the rate, and other trial steps than the first ones would leave traces.
    """
    for each in callbacks:
        if isinstance(each, LearningRateFinder):
            each.on_fit_start = lambda *_: None


class ScaledRate(Callback):  # type: ignore[misc]
    """Multiplies all learning rates, while an optimizer steps and only then.

    So it goes with any scheduler, and checkpoints hold what the model and its scheduler set.
    """

    def __init__(self, spec: ScaleLrSpec, global_batch_size: int) -> None:
        ratio = global_batch_size / spec.base_batch_size
        self._whole = ratio if spec.rule == "linear" else math.sqrt(ratio)
        self._warmup_steps = spec.warmup_steps

    def factor(self, step: int) -> float:
        """The factor after so many optimizer steps."""
        if step >= self._warmup_steps:
            return self._whole
        return 1 + (self._whole - 1) * step / self._warmup_steps

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Be called before and after each step of the optimizers."""
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
