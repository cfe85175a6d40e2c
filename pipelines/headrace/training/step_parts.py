"""What the time of training steps goes to, by part."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer
from torch.nn.parallel import DistributedDataParallel

_DIGITS = 4


class StepParts:
    """Adds up the seconds of this rank's steps by part, as a callback notes them.

    The clock is the host's: on an accelerator, where work is only handed out, forward, backward
    and optimizer are not told.

    Args:
        checkpoint_s: Gives the seconds that training has waited for checkpoints so far.
    """

    def __init__(self, checkpoint_s: Callable[[], float]) -> None:
        self._checkpoint_s = checkpoint_s
        self._is_host = False
        self._at_s = 0.0
        self.restart()

    def start(self, trainer: Trainer) -> None:
        """Have optimizers tell when a step is over; they run forward and backward within it."""
        self._is_host = trainer.strategy.root_device.type == "cpu"
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(lambda *_: self.note("optimizer"))

    def begin(self) -> None:
        """A step begins."""
        self._at_s = time.perf_counter()

    def note(self, part: str) -> None:
        """A part of a step is over."""
        now_s = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now_s - self._at_s
        self._at_s = now_s

    def shares(self, model: Any, seconds: float) -> dict[str, float]:
        """Shares of the seconds since `restart`; `model` is as the strategy has wrapped it."""
        found = dict(self._seconds) if self._is_host else {}
        if found and (waiting := _waiting(model)) is not None:
            found["communication"] = found.get("backward", 0.0) * waiting
            found["backward"] = found.get("backward", 0.0) - found["communication"]
        found["checkpoint"] = self._checkpoint_s() - self._since_checkpoint_s
        return {name: round(min(each / seconds, 1.0), _DIGITS) for name, each in found.items()}

    def restart(self) -> None:
        """Count from now on."""
        self._seconds: dict[str, float] = {}
        self._since_checkpoint_s = self._checkpoint_s()


def _waiting(model: Any) -> float | None:
    """Share of DDP's backward passes in which it computed nothing; None where it tells nothing.

    DDP measures its first ten passes and each hundredth, and tells the means: what it has sent less
    what it computed meanwhile is the wait for other ranks.
    """
    if not isinstance(model, DistributedDataParallel):
        return None
    told = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001
    if not told.get("avg_backward_comm_time"):
        return None
    waiting = told["avg_backward_comm_time"] - told["avg_backward_compute_comm_overlap_time"]
    return float(waiting / (waiting + told["avg_backward_compute_time"]))
