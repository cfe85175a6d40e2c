"""When a lease ends: a pure decision of its host."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass

BY_SIGNAL = "the host was ended by"
"""How the reason begins of a lease whose host got a signal; who sent it, the queue may know."""

TELLING_S = 3.0
"""Steps end so long before their lease does, to tell how far they came."""

TIMED_OUT = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
"""What is raised when a time is over: before Python 3.11 there are three types."""

_MOST_LEAVING_S = 60.0


def leaving_s(limit_s: float) -> float:
    """Seconds at the end of a job's time limit in which its lease ends in order."""
    return min(_MOST_LEAVING_S, limit_s / 6)


def ends_at(lifetime_s: float, now: float, job_started: str | None) -> float:
    """When a lease ends at the latest, seconds since the epoch, whose host starts now.

    A job's life counts from the start of its script: the value of `JOB_STARTED`.
    """
    if not job_started:
        return now + lifetime_s
    return float(job_started) + lifetime_s - leaving_s(lifetime_s)


@dataclass(frozen=True, kw_only=True)
class LeaseClock:
    """What the host sees of its lease at one moment; times on one clock, in seconds."""

    now_s: float
    ends_s: float
    idle_since_s: float | None
    """Since when no step runs; None while one runs or the machines are not there yet."""
    lifetime_s: float
    idle_stop_s: float
    asked: str | None = None
    """Why somebody asked the lease to close; None when nobody did."""
    lost_owner: str | None = None
    """Name of the owner process that has gone; None when it lives or there is none."""
    is_removed: bool = False
    """Whether somebody removed the lease's folder, so that nobody can ask for anything."""
    signal_name: str | None = None


def why_close(life: LeaseClock) -> str | None:
    """Why the lease ends now; None when it goes on."""
    if life.asked is not None:
        return life.asked.strip() or "asked to close"
    if life.is_removed:
        return "its folder was removed"
    if life.signal_name is not None:
        return f"{BY_SIGNAL} {life.signal_name}"
    if life.lost_owner is not None:
        return f"its owner, {life.lost_owner}, has gone"
    if life.now_s >= life.ends_s:
        return f"its lifetime of {life.lifetime_s:g} s is over"
    if life.idle_since_s is not None and life.now_s - life.idle_since_s >= life.idle_stop_s:
        return f"no step ran for {life.idle_stop_s:g} s"
    return None
