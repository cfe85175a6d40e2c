"""Passes on how far a training is, from what its rank 0 tells to the status of its step."""

from __future__ import annotations

import math

from headrace.files.atomic import read_record, read_text
from headrace.steps.context import StepContext
from headrace.steps.history import read_evaluated
from headrace.training import checkpoints
from headrace.training.plan import TrainPlan
from headrace.training.records import BestCheckpoint, TrainingProgress

_MAX_METRICS = 12
_MAX_JUDGED = 3


class Follower:
    """Passes the progress of rank 0 on to the step's status; `last` is the newest.

    A `problem` that does not end the training is told beside it.
    """

    def __init__(self, context: StepContext, plan: TrainPlan | None, world_size: int) -> None:
        self._context = context
        self._plan = plan
        self._world_size = world_size
        self.last = TrainingProgress(epoch=0, step=0)
        self.problem = ""

    def __call__(self, progress: TrainingProgress | None) -> None:
        """Take a report, None while ranks start; raises as `StepContext.check`."""
        latest = progress or self.last
        total = None if self._plan is None else self._plan.steps_with(latest.steps_per_batch)
        if progress is None:
            does = "running" if self._plan is None else "starting"  # scripts need not report
            waits = read_text(self._context.folder.waits)
            phase = waits or f"{does} {self._world_size} ranks"
            self._context.progress(self.last.step, total, "steps", phase)
            return
        total = total or progress.total_steps
        if progress != self.last:
            self.last = progress
            loss = {} if progress.loss is None else {"loss": progress.loss}
            told = self._learned(progress)
            rates = {"samples_per_s": progress.samples_per_s, "data_wait": progress.data_wait}
            self._context.report(**(told | loss | rates))
        epochs = "" if self._plan is None else f"/{self._plan.epochs}"
        phase = f"epoch {progress.epoch + 1}{epochs}" + (self.problem and f"; {self.problem}")
        self._context.progress(progress.step, total, "steps", phase)

    def _learned(self, progress: TrainingProgress) -> dict[str, float]:
        """The newest metrics, not too many for a line, and the best value of the monitored one.

        Also what the newest checkpoint was judged to be, where somebody evaluates them meanwhile.
        """
        told = [(name, each) for name, each in progress.metrics.items() if math.isfinite(each)]
        best = read_record(self._context.run_folder.checkpoints / checkpoints.BEST, BestCheckpoint)
        known = dict(told[:_MAX_METRICS]) | ({f"best {best.metric}": best.value} if best else {})
        rows = read_evaluated(self._context.run_folder)
        newest = max(rows, key=lambda row: row.step, default=None)
        if newest is None:
            return known
        judged = list(newest.metrics.items())[:_MAX_JUDGED]
        named = {f"evaluated {newest.split}/{name}": value for name, value in judged}
        return known | {"evaluated step": float(newest.step)} | named
