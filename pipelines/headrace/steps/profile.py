"""A profile of a training under way: what is asked, and what each rank answers.

Whoever asks puts `profile.json` into the folder of the train step; ranks look there about once a
second, between two steps. Each asked one leaves its trace and a `RankProfile` in
`profile/step-<step>/` of the run's folder.
"""

from __future__ import annotations

from pathlib import Path

from headrace.files.layout import RunFolder
from headrace.record import Figures, Record

LOOK_S = 1.0
"""Time between two looks of a rank."""


class ProfileRequest(Record):
    """Asks ranks of a training for a profile."""

    first_step: int
    """Optimizer steps done when it begins; ranks that are further begin at once."""
    num_steps: int
    """Optimizer steps that are recorded, after one that is not."""
    ranks: tuple[int, ...]
    memory: bool = False
    """Whether what each operator allocates is recorded."""
    lines: tuple[str, ...] = ()
    """Functions whose lines are timed, as `module:function` or `module:Class.method`."""

    def folder(self, run: RunFolder) -> Path:
        """Where its answers lie."""
        return run.profile / f"step-{self.first_step:06d}"

    def answer(self, run: RunFolder, rank: int) -> Path:
        """File of a rank's `RankProfile`, written last."""
        return self.folder(run) / f"rank-{rank}.json"

    def trace(self, run: RunFolder, rank: int) -> Path:
        """File of a rank's trace, in Chrome's format."""
        return self.folder(run) / f"rank-{rank}.trace.json.gz"


class Operator(Figures):
    """What an operator took, over all recorded steps."""

    name: str
    calls: int
    cpu_s: float
    """Time in itself on the CPU, without the operators that it calls."""
    device_s: float
    """Time of its kernels on the accelerator; 0 without one."""
    num_bytes: int
    """Memory that it allocated itself less what it freed; 0 unless memory was asked for."""


class RankProfile(Figures):
    """What a rank recorded."""

    rank: int
    node: str
    step: int
    """Optimizer steps done when recording began."""
    num_steps: int = 0
    """Optimizer steps that were recorded: fewer than asked for when training ended."""
    seconds: float = 0.0
    """Time that they took, while they were recorded."""
    trace: str = ""
    """The trace, for Perfetto or chrome://tracing."""
    operators: tuple[Operator, ...] = ()
    """Those that took the most time, the longest first."""
    lines: str = ""
    """Time by line of the functions that were asked for, as line_profiler tells it."""
    error: str = ""
    """Why there is no profile; empty when there is one."""
