"""Which sites take which trials of a suite over several sites: a pure function.

The driver calls it each time something has changed, a simulation calls it in simulated time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Policy = Literal["own-first", "cheapest", "spread"]


@dataclass(frozen=True, kw_only=True)
class PlannedSite:
    """A site at one moment; times in seconds from now, prices in US dollars."""

    name: str
    slots: int
    """Most trials at once: by its nodes, its role, and the command `limit-site`; 0: unusable."""
    is_own: bool = True
    """Whether its machines are not rented by the hour."""
    usd_per_hour: float = 0.0
    """Price of a slot; 0 if it is free or unknown."""
    start_s: float = 0.0
    """Time until a further slot can begin a trial: queue, boot, copies; 0 if its nodes are there."""
    speed: float = 1.0
    """A trial of `seconds` takes `seconds / speed` here."""
    open_slots: int = 0
    """Slots whose nodes are there, free or not."""
    running_s: tuple[float, ...] = ()
    """Expected time left of each running trial."""
    assigned: tuple[int, ...] = ()
    """Trials that wait there, by number, and have not begun."""
    min_paid_s: float = 0.0
    """Least time that is paid for a slot once it opens, with its boot."""


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """A suite over several sites at one moment."""

    sites: tuple[PlannedSite, ...]
    """In the user's order."""
    waiting: tuple[tuple[int, float], ...]
    """Number and expected seconds at speed 1 of each trial that has not begun, also assigned ones,
    in the order in which they should begin."""
    policy: Policy = "own-first"
    left_s: float = math.inf
    """Time until the deadline, may be negative; infinite: none."""
    budget_usd: float = math.inf
    """US dollars that may still be spent; infinite: no limit."""


@dataclass(frozen=True, kw_only=True)
class SitePlan:
    """The plan for one site."""

    name: str
    slots: int = 0
    """Trials at once that the site should have; 0: it closes when its trials have ended."""
    ends_s: float = 0.0
    """When its last trial ends; 0: it has none."""
    usd: float = 0.0
    """What it will cost from now on."""
    why: str = ""
    """Why it is used, or is not, in a few words for users."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan for a suite."""

    sites: tuple[SitePlan, ...]
    assign: tuple[tuple[int, str], ...] = ()
    """Trials to assign now, by number, with the site; in order."""
    withdraw: tuple[tuple[int, str], ...] = ()
    """Assigned trials that should be taken back from their site: it cannot begin them soon enough,
    and another one has a free slot, or the plan does not use it any more."""
    makespan_s: float = 0.0
    """When the last trial ends; infinite: never, as no site is usable or the budget is spent."""
    usd: float = 0.0
    """What all sites will cost from now on."""
    is_late: bool = False
    """Whether the deadline cannot be met within the budget."""


def plan(now: PlanInput) -> Plan:
    """Return which sites open, and which trials are assigned or taken back now."""
    raise NotImplementedError
