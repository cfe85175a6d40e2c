"""Writes the history of a training while it goes on; see `headrace.steps.history`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from headrace.data.loader import BatchLoader
from headrace.files.layout import RunFolder
from headrace.steps.history import (
    HistoryRow,
    RankRow,
    RowWriter,
    UsageRow,
    rank_file,
    training_file,
    usage_file,
)
from headrace.training.records import NodeLaunch
from headrace.training.scaling import rate_factor
from headrace.training.step_parts import StepParts
from headrace.training.trainer import whole_loss
from headrace.training.usage import RankUsage, Usage

_LEAST_S = 0.1
_LEAST_USAGE_S = 1.0


class KeepHistory(Callback):  # type: ignore[misc]
    """Rank 0 writes how training goes, the first rank of each node how busy the node is.

    Each rank writes what it takes itself.

    Every validation and every end of an epoch has a row with all that the model logged; all ranks
    meet for it, since what a rank logs may be its own.

    Args:
        run: Folder of the run.
        launch: This node's.
        loader: Of the training batches.
        data_ranks: Ranks that train on samples of their own.
        checkpoint_s: Gives the seconds that training has waited for checkpoints so far.

    Attributes:
        metrics: What the model logged last, the mean over ranks.
    """

    def __init__(
        self,
        run: RunFolder,
        launch: NodeLaunch,
        loader: BatchLoader,
        data_ranks: int,
        checkpoint_s: Callable[[], float],
    ) -> None:
        self._run, self._launch, self._loader = run, launch, loader
        self._parts = StepParts(checkpoint_s)
        self._rows: RowWriter[HistoryRow] | None = None
        self._usage: tuple[RowWriter[UsageRow], Usage] | None = None
        self._rank: tuple[RowWriter[RankRow], RankUsage] | None = None
        self._number = 1
        self._losses: Tensor | None = None
        self._num_losses = 0
        self._row: HistoryRow | None = None
        self._data_ranks = data_ranks
        self.metrics: dict[str, float] = {}

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell from where training goes on."""
        self._parts.start(trainer)
        node, rank = self._launch.node_name, trainer.global_rank
        ranks = RowWriter(rank_file(self._run, rank), RankRow, _LEAST_USAGE_S)
        self._rank = (ranks, RankUsage(rank, node))
        if trainer.local_rank == 0:
            file = usage_file(self._run, self._launch.node_index)
            self._usage = (RowWriter(file, UsageRow, _LEAST_USAGE_S), Usage(node))
        if trainer.is_global_zero:
            self._rows = RowWriter(training_file(self._run), HistoryRow, _LEAST_S)
            self._number += max((row.launch for row in self._rows.before), default=0)
            self._rows.append(self._now(trainer).model_copy(update={"starts": True}))
        self._restart_clock()

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins: its batch is there."""
        self._parts.begin()

    def on_before_backward(self, *_: Any) -> None:
        """The forward pass is over."""
        self._parts.note("forward")

    def on_after_backward(self, *_: Any) -> None:
        """The backward pass is over, with the gradients of all ranks where DDP shares them."""
        self._parts.note("backward")

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Add the loss up where it lies, and write what is due."""
        if self._rows is not None:
            self._add(trainer, module, outputs)
            if self._rows.is_due:
                self._rows.append(self._measure(trainer))
        if self._rank is not None and self._rank[0].is_due:
            self._rank[0].append(self._rank[1].look())
        if self._usage is not None and self._usage[0].is_due:
            self._usage[0].append(self._usage[1].look())

    def on_train_end(self, *_: Any) -> None:
        """Tell at least once what was taken, of a short training, too."""
        if self._rank is not None:
            self._rank[0].append(self._rank[1].look())
        if self._usage is not None:
            self._usage[0].append(self._usage[1].look())

    def on_validation_start(self, trainer: Trainer, *_: Any) -> None:
        """Measure before the time of validation counts."""
        if self._rows is not None:
            self._measure(trainer)

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell what the model logged."""
        if not trainer.sanity_checking:
            self._tell_metrics(trainer)
            self._restart_clock()

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        """Tell what the model logged of the whole epoch."""
        self._tell_metrics(trainer)

    def _add(self, trainer: Trainer, module: LightningModule, outputs: Any) -> None:
        loss = whole_loss(trainer, module, outputs)
        if loss is not None:
            self._losses = loss.float() if self._losses is None else self._losses + loss
            self._num_losses += 1

    def _measure(self, trainer: Trainer) -> HistoryRow:
        """Sum up what has been since the row before; what was measured when there was no step."""
        if self._row is not None and self._row.step == trainer.global_step:
            return self._row
        seconds = max(time.monotonic() - self._since_s, 1e-9)
        samples = (self._loader.num_samples - self._since_samples) * self._data_ranks
        loss = None if self._losses is None else float(self._losses) / self._num_losses
        measured = {
            "loss": loss if loss is not None and math.isfinite(loss) else None,
            "samples_per_s": samples / seconds,
            "data_wait": min((self._loader.wait_s - self._since_wait_s) / seconds, 1.0),
            "parts": self._parts.shares(trainer.strategy.model, seconds),
        }
        self._row = self._now(trainer).model_copy(update=measured)
        self._restart_clock()
        return self._row

    def _tell_metrics(self, trainer: Trainer) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.metrics = mean_over_ranks(logged)
        if self._rows is None or not self.metrics or not self._rows.has_room:
            return
        row = self._measure(trainer)
        if row.metrics != self.metrics:
            self._row = row.model_copy(update={"at": time.time(), "metrics": self.metrics})
            self._rows.append(self._row)

    def _now(self, trainer: Trainer) -> HistoryRow:
        return HistoryRow(
            at=time.time(),
            launch=self._number,
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            learning_rates=tuple(
                max(float(group["lr"]) for group in optimizer.param_groups) * rate_factor(trainer)
                for optimizer in trainer.optimizers
            ),
        )

    def _restart_clock(self) -> None:
        self._since_s = time.monotonic()
        self._since_samples, self._since_wait_s = self._loader.num_samples, self._loader.wait_s
        self._losses, self._num_losses = None, 0
        self._parts.restart()


def mean_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Mean of each value; the same on all ranks. Values of one rank only count there."""
    if not torch.distributed.is_initialized():
        return values
    gathered: list[dict[str, float]] = [{}] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, values)
    names = sorted({name for each in gathered for name in each})
    found = {name: [each[name] for each in gathered if name in each] for name in names}
    return {name: sum(each) / len(each) for name, each in found.items()}
