"""Records of a simulated suite: its trials, the machines, how trials share them, the outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.suites.site_plan import Policy

Order = Literal["longest", "given", "shortest"]


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A trial to simulate."""

    seconds: float
    """Time it takes alone on its GPUs."""
    gpus: int = 1
    expected_s: float | None = None
    """What a planner believes that it takes; None: `seconds`."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Machines of one kind; times and prices of one node."""

    count: int = 1
    gpus: int = 1
    """GPUs of each; a node without GPUs counts as one."""
    usd_per_hour: float | None = 0.0
    """US dollars; None: unknown, and not counted."""
    spot_usd_per_hour: float | None = None
    """The same for a spot instance of this kind."""
    interruptions_per_hour: float = 0.0
    """Interruptions of one node, equally likely at any moment."""
    queue_s: float = 0.0
    """Mean wait for a node, exponentially distributed; it costs nothing."""
    boot_s: float = 0.0
    """From the node's arrival to the first trial; it is paid."""
    walltime_s: float = math.inf
    """Time after which a node is returned, and its trials save a checkpoint."""
    site: str = ""
    """Name of their site."""
    is_own: bool = True
    """Whether they are not rented by the hour."""
    speed: float = 1.0
    """2: a trial takes half the time."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Where trials run, and how they share machines."""

    nodes: tuple[Nodes, ...] = ()
    pack: int = 1
    """Trials at once on one GPU, of trials that need only one GPU."""
    slow_down: float = 0.0
    """Slow-down by each further trial on a GPU: n of them take 1 + (n - 1) x this times as
    long."""
    order: Order = "longest"
    """Which trial begins first."""
    checkpoint_s: float = 600.0
    """Work between two checkpoints; an interruption loses part of it."""
    restart_s: float = 0.0
    """Start of a trial, each time it begins."""
    policy: Policy | None = None
    """How the trials of several sites are planned; None: the nodes share the waiting trials."""
    deadline_s: float = math.inf
    budget_usd: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a simulated suite took."""

    makespan_s: float
    node_hours: float
    """Paid hours."""
    usd: float
    utilisation: float
    """Share of the paid GPU time in which a trial was on the GPU."""
    waste: float
    """Share of the paid GPU time without a result: idle, booting, starting, repeated work."""
    interruptions: int
    usd_of: Mapping[str, float]
    """US dollars by site."""
    moves: int = 0
    """Trials that were taken back from a site where they had not begun."""
