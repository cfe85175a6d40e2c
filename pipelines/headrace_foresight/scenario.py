"""Records of a simulated suite: its trials, the machines, how they are shared out, the outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Order = Literal["longest", "given", "shortest"]


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A trial to be simulated."""

    seconds: float
    """Time it takes alone on its GPUs."""
    gpus: int = 1
    at_s: float = 0.0
    """When it is there to be begun."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Machines of one kind."""

    count: int
    gpus: int = 1
    """GPUs of each; a node without counts as one."""
    usd_per_hour: float = 0.0
    interruptions_per_hour: float = 0.0
    """Of one node, at any moment alike."""
    queue_s: float = 0.0
    """Mean wait for a node, exponentially distributed; it costs nothing."""
    boot_s: float = 0.0
    """From then to the first trial; it is paid."""
    walltime_s: float = math.inf
    """Time after which a node is given back, its trials with a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Where trials run, and how they are shared out."""

    nodes: tuple[Nodes, ...]
    pack: int = 1
    """Trials at once on one GPU, of those that want only one."""
    slow_down: float = 0.0
    """By how much each further trial on its GPU slows a trial: n of them take 1 + (n - 1) x this
    times as long."""
    order: Order = "longest"
    """Which trial begins first."""
    checkpoint_s: float = 600.0
    """Work between two checkpoints, which an interruption throws away in part."""
    restart_s: float = 0.0
    """Start of a trial, each time it begins."""
    backfill: bool = True
    """Whether a node near its time limit takes a trial that ends before it, if there is one."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulated suite took."""

    makespan_s: float
    node_hours: float
    """Hours that were paid."""
    usd: float
    utilisation: float
    """Share of the paid GPU time in which a trial was on the GPU."""
    waste: float
    """Share of the paid GPU time that gave nothing: idle, booting, starting, work done again."""
    interruptions: int
    mean_wait_s: float
    """Mean time from when a trial was there until it first began."""
