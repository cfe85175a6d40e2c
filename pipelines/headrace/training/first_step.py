"""The first step of a training in this process: batch, training, validation and checkpoint."""

from __future__ import annotations

import re
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.data.batch_form import parts_of
from headrace.training.history_writer import whole_loss
from headrace.training.launch_records import NodeReady, RankFailure
from headrace.training.rank import RankTraining
from headrace.training.rank_failures import describe

_OUT_OF_BOUNDS = re.compile(r"Target -?\d+ is out of bounds")


class FirstStep(Callback):  # type: ignore[misc]
    """Ends a training after its first batch and a validation, and notes what these show.

    Attributes:
        batch: Parts of the batch with dtype and shape; empty if none was made.
        loss: Loss of the batch; None if there is none.
        logged: Names of the metrics that were logged.
        failure: Why the training failed; None if it did not.
    """

    def __init__(self) -> None:
        self.batch, self.logged = "", tuple[str, ...]()
        self.loss: float | None = None
        self.failure: RankFailure | None = None
        self._model: LightningModule | None = None
        self._reached: set[str] = set()

    def run(self, node: NodeReady) -> None:
        """Train as rank 0 of a run does."""
        try:
            RankTraining(node, 0, self).run()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  any of users
            self.failure = describe(error, 0)

    @property
    def num_parameters(self) -> int | None:
        """Parameters of the model; None if there is none."""
        return self._model and sum(each.numel() for each in self._model.parameters())

    @property
    def without_gradient(self) -> tuple[str, ...]:
        """Names of trained parameters that no loss has reached; empty without a training step."""
        named = self._model.named_parameters() if self._model and self._reached else ()
        return tuple(n for n, each in named if each.requires_grad and n not in self._reached)

    @property
    def last_layer(self) -> tuple[str, int] | None:
        """Name and number of outputs of the last layer, if a label was not among the outputs."""
        if self.failure is None or not _OUT_OF_BOUNDS.search(self.failure.what):
            return None
        found = None
        for name, layer in self._model.named_modules() if self._model else ():
            size = getattr(layer, "out_features", getattr(layer, "out_channels", None))
            found = (name, size) if isinstance(size, int) else found
        return found

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the model."""
        del trainer
        self._model = pl_module

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, *_: Any) -> None:
        """Note the batch as the model gets it."""
        del trainer, pl_module
        self.batch = parts_of(batch)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note which parameters the backward pass has reached."""
        del trainer
        named = pl_module.named_parameters()
        self._reached |= {name for name, each in named if each.grad is not None}

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Note the loss, and ask to stop."""
        loss = whole_loss(trainer, module, outputs)
        self.loss = None if loss is None else float(loss.mean())
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note the names of the metrics."""
        self.logged = tuple(sorted(trainer.callback_metrics))
