"""Reports of Lightning's Trainer in a user's script, without a change to it.

Lightning calls the functions of an entry point for each Trainer of any process: this module
imports nothing of headrace before it is needed.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any


def of_lightning(package: str = "lightning.pytorch") -> list[Any]:
    """Return the callback of a Trainer of a package; none outside of a script of headrace."""
    is_ours = "headrace.training.trainer" in sys.modules
    if is_ours or "HEADRACE_LAUNCH" not in os.environ or os.environ.get("RANK", "0") != "0":
        return []
    from headrace.informing import inform

    found = inform(None, "callback of Lightning", partial(_callback, package), within_s=None)
    return [found] if found else []


def of_pytorch_lightning() -> list[Any]:
    """Return the same for Lightning under its other name."""
    return of_lightning("pytorch_lightning")


def _callback(package: str) -> Any:
    base = importlib.import_module(package).Callback
    return type("HeadraceReports", (_Reports, base), {})(package)


class _Reports:
    """Hooks of the callback; its other base is the `Callback` of the Trainer's package.

    Rank 0 alone has them. So metrics are read where Lightning has computed them already: computing
    may need all ranks.
    """

    def __init__(self, package: str) -> None:
        from headrace.informing import shielded

        self._package = package
        self._epoch, self._num_steps = 0, 0.0
        for name in _HOOKS:
            setattr(self, name, shielded(None, "metrics of Lightning", getattr(self, name)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _callback, (self._package,)  # for processes that the Trainer spawns

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Note the length of the training."""
        self._num_steps = trainer.estimated_stepping_batches

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Report the metrics of the epoch before."""
        self._report(trainer, trainer.callback_metrics)
        self._epoch = trainer.current_epoch

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        """Report the loss."""
        del module
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        is_number = getattr(loss, "numel", int)() == 1  # the user's step may return anything
        factor = trainer.accumulate_grad_batches
        self._report(trainer, {"loss": loss * factor} if is_number else {})

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Report the metrics of a validation or test, or of the last epoch."""
        if not trainer.sanity_checking:
            self._report(trainer, trainer.callback_metrics)

    on_test_end = on_train_end = on_validation_end

    def _report(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        from headrace.script import reporter_of_rank
        from headrace.training.launch_records import LIGHTNING, TrainingProgress

        reports = reporter_of_rank()
        if reports is not None and trainer.is_global_zero:
            total = int(self._num_steps) if 0 < self._num_steps < math.inf else None
            now = TrainingProgress(epoch=self._epoch, step=trainer.global_step, total_steps=total)
            reports.take(now, None, metrics, LIGHTNING)


_HOOKS = [name for name in vars(_Reports) if name.startswith("on_")]
