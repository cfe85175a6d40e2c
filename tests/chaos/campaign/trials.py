"""What is done to a run: which process, in which phase, when and how; drawn from a seed."""

from __future__ import annotations

import random
from typing import Literal

from headrace.record import Record

Signal = Literal["kill -9", "stop"]

PHASES = ("pack", "stage", "train", "evaluate", "close")
"""Parts of a run: until a step has succeeded, its lease's opening included; then the end."""

_ROLES = {
    "pack": ("command", "host", "guard", "tracker", "driver", "worker"),
    "stage": ("command", "host", "guard", "driver", "worker"),
    "train": ("command", "host", "guard", "tracker", "driver", "worker", "server", "rank"),
    "evaluate": ("command", "host", "guard", "driver", "worker", "server", "predictor"),
    "close": ("command", "host", "guard"),
}

TARGETS = tuple((phase, role) for phase in PHASES for role in _ROLES[phase])
"""Every phase with each kind of process that it has; see `processes.role_of`."""

_LATEST = 0.95
_SHORTEST, _LONGEST = 0.2, 1.8


class Trial(Record):
    """One disturbance of one run."""

    seed: int
    """Seed of the campaign."""
    number: int
    """Number in the campaign, from 0."""
    phase: str
    """Phase of the run that it happens in."""
    role: str
    """Kind of process that it happens to."""
    moment: float
    """When: part of the time that such a process lived in that phase of the reference, 0..1."""
    which: float
    """Which of several such processes, 0..1."""
    signal: Signal
    """What it gets."""
    halt_s: float
    """How long it stands still before SIGCONT, seconds; 0 for `kill -9`."""

    def earlier(self, times: int) -> Trial:
        """The same at a moment that is so many times halved."""
        return self.model_copy(update={"moment": self.moment / 2**times})


def draw(seed: int, number: int, lost_after_s: float) -> Trial:
    """The trial with this number; a pure function.

    Args:
        seed: Seed of the campaign.
        number: Number of the trial, from 0.
        lost_after_s: Silence after which a lease counts as lost; halts are shorter and longer.
    """
    rng = random.Random(f"{seed}-{number}")
    phase, role = rng.choice(TARGETS)
    signal: Signal = rng.choice(("kill -9", "stop"))
    halt_s = rng.uniform(_SHORTEST, _LONGEST) * lost_after_s
    return Trial(
        seed=seed,
        number=number,
        phase=phase,
        role=role,
        moment=rng.uniform(0, _LATEST),
        which=rng.random(),
        signal=signal,
        halt_s=halt_s if signal == "stop" else 0.0,
    )
