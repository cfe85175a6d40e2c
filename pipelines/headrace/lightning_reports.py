"""Reports of Lightning's Trainer in a user's script, without a change to it.

Lightning asks an entry point for callbacks of each Trainer of any process: this module imports
nothing of headrace before it is needed.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Lightning's two names, each with a `Callback` and an entry point of its own."""


def callbacks() -> list[Any]:
    """Return the callback for a Trainer; none outside of a script of headrace."""
    is_ours = "headrace.training.trainer" in sys.modules
    if is_ours or "HEADRACE_LAUNCH" not in os.environ or os.environ.get("RANK", "0") != "0":
        return []
    from headrace.informing import inform

    loaded = [name for name in _PACKAGES if name in sys.modules]
    found = inform(None, "callback of Lightning", partial(_callback, *loaded), within_s=None)
    return [found] if found else []


def _callback(*packages: str) -> Any:
    """Return the callback, an instance of the `Callback` of each package."""
    from headrace.files.layout import RunFolder
    from headrace.informing import shielded

    run = RunFolder(Path(os.environ["HEADRACE_RUN_FOLDER"]))
    bases = (importlib.import_module(name).Callback for name in packages)
    made = type("HeadraceReports", (_Reports, *bases), {})()
    made.packages = packages
    for name in (name for name in vars(_Reports) if name.startswith("on_")):
        setattr(made, name, shielded(run, "metrics of Lightning", getattr(made, name)))
    return made


class _Reports:
    """Hooks that rank 0 alone has.

    So they read metrics where Lightning has computed them: to compute may need all ranks.
    """

    packages: tuple[str, ...]
    _epoch, _num_steps = 0, 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return _callback, self.packages  # for processes that the Trainer spawns

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Report the metrics of the epoch before; note the length of the training."""
        if trainer.callback_metrics:
            self._report(trainer, trainer.callback_metrics)
        self._epoch = trainer.current_epoch
        self._num_steps = trainer.estimated_stepping_batches

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        """Report the loss, if the user's step returns one."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        is_number, factor = getattr(loss, "numel", int)() == 1, trainer.accumulate_grad_batches
        self._report(trainer, {"loss": loss * factor} if is_number else {})

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Report the metrics of a validation or test, or of the last epoch."""
        if not trainer.sanity_checking:
            self._report(trainer, trainer.callback_metrics)

    on_test_end = on_train_end = on_validation_end

    def _report(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        from headrace.script import reporter_of_rank
        from headrace.training.launch_records import LIGHTNING, TrainingProgress

        if trainer.is_global_zero and (reports := reporter_of_rank()):
            total = int(self._num_steps) if 0 < self._num_steps < math.inf else None
            known = {"epoch": self._epoch, "step": trainer.global_step, "total_steps": total}
            reports.take(TrainingProgress(**known, source=LIGHTNING), None, metrics)
