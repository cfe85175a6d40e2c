"""ResNet-50 that records when its steps end; one network for headrace and for the plain loop."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from headrace.files.atomic import write_json
from headrace_probes.training import loss_of, make_optimizer, resnet50

WARM_UP = 3
"""Steps that do not count: the first steps of a process take longer."""


class StepTimes:
    """When the first step, those of the warm-up and all steps had ended, as JSON.

    Three times, then the seconds of waiting for batches in the warm-up, and after it.

    Args:
        file: File for the times; only the first rank's are used.
        steps: Number of steps, more than `WARM_UP`.
        device: Device to synchronise with, because its work is asynchronous.
    """

    def __init__(self, file: Path, steps: int, device: torch.device) -> None:
        self._file, self._device = file, device
        self._marks = (1, WARM_UP, steps)
        self._done = 0
        self._times: list[float] = []
        self._waits: list[float] = []

    def step_ended(self, wait_s: float = 0.0) -> None:
        """Record the time, in seconds since the epoch, and the wait so far, if they are needed."""
        self._done += 1
        if self._done not in self._marks:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._times.append(time.time())
        self._waits.append(wait_s)
        if self._done == self._marks[-1]:
            _, warm_s, all_s = self._waits
            write_json(self._file, [*self._times, warm_s, all_s - warm_s])


class TimedResNet50(LightningModule):  # type: ignore[misc]
    """The model that headrace trains.

    Args:
        steps: Number of steps.
        file: For `StepTimes` of rank 0.
    """

    def __init__(self, steps: int, file: str) -> None:
        super().__init__()
        self.network = resnet50()
        self._steps, self._file = steps, Path(file)
        self._times: StepTimes | None = None

    def on_train_start(self) -> None:
        """Begin to count."""
        if self.global_rank == 0:
            self._times = StepTimes(self._file, self._steps, self.device)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        del index
        return loss_of(self.network, batch["image"], batch["label"])

    def on_train_batch_end(self, *_: object) -> None:
        """Record the time."""
        if self._times is not None:
            self._times.step_ended(self.trainer.train_dataloader.wait_s)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of the plain loop."""
        return make_optimizer(self.network)
