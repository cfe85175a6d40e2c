"""Lightning's Trainer from a recipe.

And the callbacks of every rank: random numbers, signs of life, progress, NaN, step limit.
"""

from __future__ import annotations

import math
import signal
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from headrace.data.instantiate import Allowed, instantiate
from headrace.data.sampling import seed_at
from headrace.errors import NotFiniteLossError
from headrace.recipe.train import TrainerSpec
from headrace.training.history_writer import whole_loss
from headrace.training.strategies import make_strategy
from headrace.training.watch_ranks import Beat

_INTERVAL_S = 1.0


def build_trainer(
    spec: TrainerSpec, allowed: Allowed, num_nodes: int, ranks_per_node: int, **others: Any
) -> Trainer:
    """Return the Trainer of a recipe; `others` are further arguments of Lightning's."""
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
    """Seeds random numbers by the position in training, so that a resume repeats them."""

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
    """Ends training after `max_steps` optimizer steps; -1 for no limit.

    With Lightning's own `max_steps`, a resume at the end of an epoch counts that epoch twice. So
    the Trainer has the number only until the optimizers are set up, which may read it.
    """

    def __init__(self, max_steps: int) -> None:
        self._max_steps = max_steps

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Remove the limit from Lightning's loop before a checkpoint is loaded."""
        trainer.fit_loop.epoch_loop.max_steps = -1

    def _look(self, trainer: Trainer, *_: Any) -> None:
        if 0 <= self._max_steps <= trainer.global_step:
            trainer.should_stop = True

    on_train_start = on_train_batch_end = _look


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
        """Remember the first step whose loss is not finite; raise as `check`."""
        loss = whole_loss(trainer, module, outputs) if self._enabled else None
        if loss is None:
            return
        self._epoch = trainer.current_epoch
        step = torch.where(torch.isfinite(loss).all(), math.inf, float(trainer.global_step))
        self._first_bad = step if self._first_bad is None else torch.minimum(self._first_bad, step)
        if loss.device.type == "cpu" or time.monotonic() - self._looked_at > _INTERVAL_S:
            self.check()

    def check(self, *_: Any) -> None:
        """Raise a `NotFiniteLossError` if a loss so far was not finite."""
        self._looked_at = time.monotonic()
        if self._first_bad is not None and math.isfinite(step := self._first_bad.item()):
            raise NotFiniteLossError(
                f"The loss became NaN or infinite in step {int(step)} (epoch {self._epoch + 1})",
                "Lower the learning rate, set trainer.gradient_clip_val, or look at the inputs; "
                "trainer.stop_on_nan=false lets training go on.",
            )

    on_train_epoch_end = check


class SignsOfLife(Callback):  # type: ignore[misc]
    """Writes a sign of life at every batch, and lets SIGTERM end the rank at once.

    Lightning's own handler of SIGTERM talks to the other ranks, which may be dead. Before each
    batch rank 0 would broadcast whether there was a SIGTERM, and all ranks would wait for that.
    """

    def __init__(self, beat: Beat) -> None:
        self._beat = beat

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Write a sign of life, and restore the default handler of SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # noqa: SLF001
        self._beat.tick()

    def _tick(self, *_: Any) -> None:
        self._beat.tick()

    # after the forward pass, ranks that wait for another are one beat ahead of it
    on_train_batch_start = on_before_backward = on_train_batch_end = _tick
    on_validation_batch_end = _tick
