"""The first step of a training in this process: batch, training, validation and checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.checkpoints.files import FINAL
from headrace.data.batch_form import parts_of
from headrace.files.layout import RunFolder
from headrace.record import Figures
from headrace.training.history_writer import whole_loss
from headrace.training.launch_records import NodeReady, RankFailure
from headrace.training.rank import RankTraining
from headrace.training.rank_failures import describe

_OUT_OF_BOUNDS = re.compile(r"Target -?\d+ is out of bounds")


class FirstStep(Figures):
    """What the first step of a training shows."""

    batch: str = ""
    """Fields of a training batch with dtype and shape; empty if none was made."""
    num_parameters: int = 0
    """Parameters of the model."""
    loss: float | None = None
    """Loss of the training batch; None if there is none."""
    logged: tuple[str, ...] = ()
    """Names of metrics that the model logged, sorted."""
    without_gradient: tuple[str, ...] = ()
    """Names of parameters that the backward pass did not reach."""
    optimizes_itself: bool = False
    """Whether the model has manual optimization."""
    checkpoint: Path | None = None
    """The checkpoint after the step; None if training failed."""
    failure: RankFailure | None = None
    """Why it failed; None if it did not."""


def first_step(node: NodeReady, num_classes: int) -> FirstStep:
    """Train for one batch as rank 0 of a run does, validate on one, and write the checkpoint.

    Errors are part of what is returned. `num_classes` is that of the dataset, 0 for none.
    """
    watch, failure = _Watch(), None
    try:
        RankTraining(node, 0, watch).run()
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        found = describe(error, 0)
        hint = f"{watch.head(num_classes)}{found.hint}" if _OUT_OF_BOUNDS.search(found.what) else ""
        failure = found.model_copy(update={"hint": hint or found.hint})
    final = RunFolder(Path(node.launch.run_folder)).checkpoints / FINAL
    return watch.seen.model_copy(
        update={"failure": failure, "checkpoint": None if failure else final}
    )


class _Watch(Callback):  # type: ignore[misc]
    """Notes what the first batch shows, then ends the training after its validation."""

    def __init__(self) -> None:
        self.seen = FirstStep()
        self._model: LightningModule | None = None
        self._reached: set[str] = set()

    def _note(self, **values: Any) -> None:
        self.seen = self.seen.model_copy(update=values)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the parameters."""
        del trainer
        self._model = pl_module
        self._note(num_parameters=sum(each.numel() for each in pl_module.parameters()))

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, _: int) -> None:
        """Note the batch as the model gets it."""
        del trainer, pl_module
        self._note(batch=parts_of(batch))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which parameters a backward pass has reached."""
        del trainer
        named = pl_module.named_parameters()
        self._reached |= {name for name, each in named if each.grad is not None}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Note the loss and the parameters without gradient; ask to stop."""
        loss = whole_loss(trainer, pl_module, outputs)
        trained = (name for name, each in pl_module.named_parameters() if each.requires_grad)
        self._note(
            loss=None if loss is None else float(loss.mean()),
            without_gradient=tuple(name for name in trained if name not in self._reached),
            optimizes_itself=not pl_module.automatic_optimization,
        )
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note the names of the metrics."""
        self._note(logged=tuple(sorted(trainer.callback_metrics)))

    def head(self, num_classes: int) -> str:
        """Return what the last layer gives beside the dataset's classes, for a hint."""
        sizes = [
            (name, size)
            for name, layer in (self._model.named_modules() if self._model else ())
            for size in (getattr(layer, "out_features", getattr(layer, "out_channels", None)),)
            if isinstance(size, int)
        ]
        if not sizes:
            return ""
        name, size = sizes[-1]
        classes = f"the dataset has {num_classes} classes, and " if num_classes else ""
        return (
            f"Class indices begin at 0: {classes}the last layer '{name}' gives {size} scores. "
            "Give it one for each class. "
        )
