"""When a lease ends: a pure decision of its host."""

from __future__ import annotations

import asyncio
import concurrent.futures
from dataclasses import dataclass

BY_SIGNAL = "the host was ended by"
"""Begin of the reason if a signal ended the host; the queue may know its sender."""

TELLING_S = 3.0
"""Time before the end of a lease at which its steps end, to write their results, seconds."""

TIMED_OUT = (TimeoutError, asyncio.TimeoutError, concurrent.futures.TimeoutError)
"""Errors of a timeout: before Python 3.11 there are three types."""

_MOST_LEAVING_S = 60.0


def leaving_s(limit_s: float) -> float:
    """Return the seconds at the end of a job's time limit in which its lease ends in order."""
    return min(_MOST_LEAVING_S, limit_s / 6)


def ends_at(lifetime_s: float, now: float, job_started: str | None) -> float:
    """Return the latest end of a lease whose host starts at `now`, seconds since the epoch.

    A job's life counts from the start of its script: the value of `JOB_STARTED`.
    """
    if not job_started:
        return now + lifetime_s
    return float(job_started) + lifetime_s - leaving_s(lifetime_s)


@dataclass(frozen=True, kw_only=True)
class LeaseClock:
    """State of a lease at one moment, for its host; times on one clock, in seconds."""

    now_s: float
    ends_s: float
    idle_since_s: float | None
    """Since when no step runs; None while a step runs or the machines are not ready."""
    lifetime_s: float
    idle_stop_s: float
    asked: str | None = None
    """Why the lease was asked to close; None if it was not."""
    lost_owner: str | None = None
    """Name of the owner process that has ended; None if it lives or there is none."""
    is_removed: bool = False
    """Whether the lease's folder was removed, so that no request can reach the lease."""
    signal_name: str | None = None


def why_close(life: LeaseClock) -> str | None:
    """Return why the lease ends now; None if it continues."""
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
