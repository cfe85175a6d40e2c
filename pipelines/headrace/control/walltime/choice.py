"""The time limit of a lease out of what its steps are expected to take; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from headrace.leases.records import Walltime

FLOOR_S = 600.0
"""No less is chosen, unless the queue gives no more."""

DEFAULT_S = 3600.0
"""Chosen where nothing is known of a step."""

MOST_S = 86_400.0
"""No more is chosen where neither the site nor the queue sets a limit."""

_FACTOR = 1.5
_EXTRA_S = 300.0
_ROUNDING_S = ((3600.0, 300.0), (4 * 3600.0, 900.0), (math.inf, 3600.0))


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """What a step of a lease is expected to take."""

    name: str
    """Name of the step."""
    seconds: float | None
    """Expected time; None where nothing is known."""
    num_runs: int = 0
    """Earlier runs that tell it."""


@dataclass(frozen=True, kw_only=True)
class Most:
    """The longest time that may be chosen."""

    seconds: float
    """That time."""
    whose: str
    """Who sets it, for the user."""


def choose(
    steps: Sequence[StepTime],
    most: Most,
    start_s: float = 0.0,
    too_short_s: float | None = None,
) -> Walltime:
    """Choose the time limit of a lease.

    It is the sum of the steps and of the start, times 1.5 plus 5 minutes, rounded up to 5 minutes,
    15 minutes from one hour on, an hour from four on.

    Args:
        steps: The steps that the lease serves.
        most: The longest time that may be chosen.
        start_s: Time from the start of the job until its machines are ready, seconds.
        too_short_s: Time limit of a lease before this one, in which a step came no further; None
            where there was none. The new one is twice as long at least.
    """
    known_s = [step.seconds for step in steps if step.seconds is not None]
    needed_s = _FACTOR * (sum(known_s) + start_s) + _EXTRA_S if known_s else 0.0
    if len(known_s) < len(steps):
        needed_s = max(needed_s, DEFAULT_S)
    if too_short_s is not None:
        needed_s = max(needed_s, 2 * too_short_s)
    wanted_s = max(rounded_up(needed_s), FLOOR_S)
    why = list(_reasons(steps, start_s, too_short_s))
    if wanted_s > most.seconds:
        why.append(f"{shown(wanted_s)} is more than {most.whose}")
    seconds = min(wanted_s, most.seconds)
    return Walltime(seconds=seconds, most_s=most.seconds, why="; ".join(why))


def rounded_up(seconds: float) -> float:
    """A time rounded up to what people would write."""
    step_s = next(step_s for until_s, step_s in _ROUNDING_S if seconds <= until_s)
    return math.ceil(seconds / step_s) * step_s


def shown(seconds: float) -> str:
    """A time for people, as in `1:05:00`."""
    return str(timedelta(seconds=math.ceil(seconds)))


def _reasons(steps: Sequence[StepTime], start_s: float, too_short_s: float | None) -> Sequence[str]:
    known = [f"{each.name} {shown(each.seconds)}" for each in steps if each.seconds is not None]
    unknown = [each.name for each in steps if each.seconds is None]
    reasons = [] if steps else ["none of its steps is left to do"]
    if known:
        num_runs = max(each.num_runs for each in steps)
        start = [f"start {shown(start_s)}"] if start_s else []
        runs = "one earlier run" if num_runs == 1 else f"the slowest of {num_runs} earlier runs"
        reasons.append(f"{', '.join([*known, *start])} in {runs}, times 1.5 plus 5 minutes")
    if unknown:
        reasons.append(
            f"no earlier run tells how long {' and '.join(unknown)} will take here, for which "
            f"{shown(DEFAULT_S)} is the least"
        )
    if too_short_s is not None:
        reasons.append(f"{shown(too_short_s)} was too short for the lease before, so twice that")
    return reasons
