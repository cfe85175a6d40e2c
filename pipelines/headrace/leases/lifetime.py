"""When a lease ends: a pure decision of its host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Life:
    """What the host sees of its lease at one moment; times on one clock, in seconds."""

    now_s: float
    """Now."""
    started_s: float
    """When the host started."""
    idle_since_s: float | None
    """Since when no step runs; None while one runs or the machines are not there yet."""
    lifetime_s: float
    """Longest life."""
    idle_stop_s: float
    """Longest time without a step."""
    asked: str | None = None
    """Why somebody asked the lease to close; None when nobody did."""
    lost_owner: str | None = None
    """Name of the owner process that has gone; None when it lives or there is none."""
    is_removed: bool = False
    """Whether somebody removed the lease's folder, so that nobody can ask for anything."""
    signal_name: str | None = None
    """Name of the signal that asked the host to end."""


def why_close(life: Life) -> str | None:
    """Why the lease ends now; None when it goes on."""
    if life.asked is not None:
        return life.asked.strip() or "asked to close"
    if life.is_removed:
        return "its folder was removed"
    if life.signal_name is not None:
        return f"the host was ended by {life.signal_name}"
    if life.lost_owner is not None:
        return f"its owner, {life.lost_owner}, has gone"
    if life.now_s - life.started_s >= life.lifetime_s:
        return f"its lifetime of {life.lifetime_s:g} s is over"
    if life.idle_since_s is not None and life.now_s - life.idle_since_s >= life.idle_stop_s:
        return f"no step ran for {life.idle_stop_s:g} s"
    return None
