"""The first step of a training in this process: batch, training, validation and checkpoint."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.data.batch_form import parts_of
from headrace.training.history_writer import whole_loss
from headrace.training.launch_records import NodeReady, RankFailure
from headrace.training.rank import RankTraining
from headrace.training.rank_failures import describe


class FirstStep(Callback):  # type: ignore[misc]
    """Ends a training after its first batch and a validation, and notes what these show.

    Attributes:
        shown: Parameters, batch, loss and logged metrics, as far as training came.
        missed: Trained parameters that no backward pass has reached, by name.
    """

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}
        self._layers: dict[str, Any] = {}
        self.missed: dict[str, Any] = {}

    def run(self, node: NodeReady) -> RankFailure | None:
        """Train as rank 0 of a run does; return why it failed, None if it did not."""
        try:
            RankTraining(node, 0, self).run()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  any of users
            return describe(error, 0)
        return None

    @property
    def last_layer(self) -> str:
        """Name and text of the last layer with a matrix of weights; empty if there is none."""
        weights = {name: getattr(each, "weight", None) for name, each in self._layers.items()}
        names = [name for name, each in weights.items() if each is not None and each.dim() > 1]
        return "".join(f"'{name}', {self._layers[name]}" for name in names[-1:])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the parameters."""
        del trainer
        self.shown["parameters"] = f"{sum(each.numel() for each in pl_module.parameters()):,}"
        self._layers = dict(pl_module.named_modules())
        self.missed = {n: each for n, each in pl_module.named_parameters() if each.requires_grad}

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, *_: Any) -> None:
        """Note the batch as the model gets it."""
        del trainer, pl_module
        self.shown["batch"] = parts_of(batch)

    def on_after_backward(self, *_: Any) -> None:
        """Note which parameters the backward pass has reached."""
        self.missed = {name: each for name, each in self.missed.items() if each.grad is None}

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Note the loss, and ask to stop."""
        loss = whole_loss(trainer, module, outputs)
        if loss is not None:
            self.shown["loss"] = f"{float(loss.mean()):.5g}"
        trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note the names of the metrics."""
        self.shown["logged"] = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
