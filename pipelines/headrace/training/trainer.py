"""Lightning's Trainer from a recipe.

And the callbacks of every rank: random numbers, signs of life, progress, NaN, step limit.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from headrace.data.loader import BatchLoader
from headrace.data.sampling import seed_at
from headrace.data.targets import Allowed, instantiate
from headrace.errors import NotFiniteLossError
from headrace.files.atomic import write_if_room
from headrace.recipe.train import TrainerSpec
from headrace.training.records import TrainingProgress
from headrace.training.strategies import make_strategy
from headrace.training.watch import Beat

_INTERVAL_S = 1.0


def build_trainer(
    spec: TrainerSpec, allowed: Allowed, num_nodes: int, ranks_per_node: int, **others: Any
) -> Trainer:
    """Make the Trainer of a recipe; `others` are more arguments of Lightning's."""
    arguments: dict[str, Any] = {
        "accelerator": spec.accelerator,
        "devices": ranks_per_node,
        "num_nodes": num_nodes,
        "strategy": make_strategy(spec, num_nodes, ranks_per_node),
        "precision": spec.precision,
        "max_epochs": spec.max_epochs,
        "max_steps": spec.max_steps,
        "gradient_clip_val": spec.gradient_clip_val,
        "accumulate_grad_batches": spec.accumulate_grad_batches,
        "check_val_every_n_epoch": spec.val_every_epochs,
        "deterministic": spec.deterministic,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    make = instantiate({"_target_": spec.target}, allowed, "trainer", partial=True)
    trainer: Trainer = make(**(arguments | others | spec.extra))
    return trainer


class StepSeed(Callback):  # type: ignore[misc]
    """Random numbers that depend on the place in training only, so that a resume repeats them."""

    def __init__(self, seed: int, rank: int) -> None:
        self._seed = seed
        self._rank = rank

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed all generators."""
        del pl_module, batch
        seed_at(self._seed, trainer.current_epoch, batch_idx, self._rank, "step")


class StopAtStep(Callback):  # type: ignore[misc]
    """Ends training after so many optimizer steps.

    Lightning's own `max_steps` makes a resume at the end of an epoch count that epoch twice; so
    the Trainer is told the number only until the optimizers are set up, which may ask for it.
    The number -1 is no limit.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Take the limit from Lightning's loop before the state of an interrupted run is loaded."""
        trainer.fit_loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Stop at once when the limit was reached before."""
        self._look(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop when the limit is reached."""
        self._look(trainer)

    def _look(self, trainer: Trainer) -> None:
        if 0 <= self._max_steps <= trainer.global_step:
            trainer.should_stop = True


class LossGuard(Callback):  # type: ignore[misc]
    """Ends training when the loss is NaN or infinite, naming the step.

    The loss stays on its device; it is checked about once a second, before each checkpoint and at
    the end of each epoch, so that an accelerator does not wait for it at every step.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._first_bad: Tensor | None = None
        self._epoch = 0
        self._looked_at = 0.0

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Remember the first step whose loss was not finite; raises as `check` does."""
        loss = whole_loss(trainer, module, outputs) if self._enabled else None
        if loss is None:
            return
        self._epoch = trainer.current_epoch
        step = torch.where(torch.isfinite(loss).all(), math.inf, float(trainer.global_step))
        self._first_bad = step if self._first_bad is None else torch.minimum(self._first_bad, step)
        if loss.device.type == "cpu" or time.monotonic() - self._looked_at > _INTERVAL_S:
            self.check()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Check the losses."""
        self.check()

    def check(self) -> None:
        """Check the losses so far."""
        self._looked_at = time.monotonic()
        if self._first_bad is not None and math.isfinite(step := self._first_bad.item()):
            raise NotFiniteLossError(
                f"The loss became NaN or infinite in step {int(step)} (epoch {self._epoch + 1})",
                "Lower the learning rate, set trainer.gradient_clip_val, or look at the inputs; "
                "trainer.stop_on_nan=false lets training go on.",
            )


def _tell_nothing() -> None:
    """In place of what Lightning tells all ranks of SIGTERM."""


class SignsOfLife(Callback):  # type: ignore[misc]
    """Beats at every batch, and lets SIGTERM end the rank at once.

    Lightning's own handler of SIGTERM talks to the other ranks, which may be dead, and before each
    batch rank 0 tells the others whether there was one, for which all wait.
    """

    def __init__(self, beat: Beat) -> None:
        self._beat = beat

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Beat, and take SIGTERM back from Lightning."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _tell_nothing  # noqa: SLF001
        self._beat.tick()

    def _tick(self, *_: Any) -> None:
        self._beat.tick()

    # after the forward pass, ranks that wait for another are one beat ahead of it
    on_train_batch_start = on_before_backward = on_train_batch_end = _tick
    on_validation_batch_end = _tick


class ProgressWriter(Callback):  # type: ignore[misc]
    """Rank 0 tells how far training is, about once a second, and how long it waited for batches.

    `metrics` gives what the model has logged last, over all ranks.
    """

    def __init__(
        self,
        path: Path,
        loader: BatchLoader,
        world_size: int,
        metrics: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._path = path
        self._loader = loader
        self._world_size = world_size
        self._metrics = metrics
        self._started_at = self._written_at = time.monotonic()
        self._base_wait_s = self._wait_s = loader.wait_s
        self._num_samples = loader.num_samples

    @property
    def data_wait(self) -> float:
        """Share of the time since training started that was spent waiting for batches."""
        elapsed_s = time.monotonic() - self._started_at
        return (self._loader.wait_s - self._base_wait_s) / elapsed_s if elapsed_s > 0 else 0.0

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Start the clock."""
        self._started_at = self._written_at = time.monotonic()
        self._write(trainer, None)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Write when a second has passed."""
        if time.monotonic() - self._written_at >= _INTERVAL_S:
            self._write(trainer, whole_loss(trainer, module, outputs))

    def _write(self, trainer: Trainer, loss: Tensor | None) -> None:
        if not trainer.is_global_zero:
            return
        now = time.monotonic()
        elapsed_s = max(now - self._written_at, 1e-9)
        samples = self._loader.num_samples - self._num_samples
        value = None if loss is None else float(loss.detach())
        progress = TrainingProgress(
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            steps_per_batch=_steps_per_batch(trainer, trainer.lightning_module),
            loss=value if value is not None and math.isfinite(value) else None,
            samples_per_s=samples * self._world_size / elapsed_s,
            data_wait=min((self._loader.wait_s - self._wait_s) / elapsed_s, 1.0),
            metrics=self._metrics(),
        )
        write_if_room(self._path, progress)
        self._written_at = now
        self._wait_s, self._num_samples = self._loader.wait_s, self._loader.num_samples


def _steps_per_batch(trainer: Trainer, module: LightningModule) -> int:
    """Optimizer steps a batch: a model that optimizes by itself may step several optimizers."""
    batches = int(trainer.fit_loop.epoch_loop.total_batch_idx) + 1
    if module.automatic_optimization or batches < 1:
        return 1
    return max(round(int(trainer.global_step) / batches), 1)


def _loss_of(trainer: Trainer, outputs: Any) -> Tensor | None:
    """The loss in what a training step gave, detached, else the sum of those that it logged."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if isinstance(value, Tensor):
        return value.detach()
    logged = [
        value.detach()
        for name, value in trainer.callback_metrics.items()
        if "loss" in name and not name.startswith(("val", "test"))
    ]
    return torch.stack(logged).sum() if logged else None


def whole_loss(trainer: Trainer, module: LightningModule, outputs: Any) -> Tensor | None:
    """The loss as the training step gave it: callbacks are handed its share of the optimizer step.

    Lightning divides it by the number of batches that are accumulated, in automatic optimization.
    Where the step gives none, as with several optimizers, it is the sum of the logged ones.
    """
    loss = _loss_of(trainer, outputs)
    batches = trainer.accumulate_grad_batches if module.automatic_optimization else 1
    return loss if loss is None or batches == 1 else loss * batches
