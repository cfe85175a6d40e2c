"""Shares of attempts in their machines, and how long they waited for these; pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from headrace.ledger.rows import MachineRecord


class Span(NamedTuple):
    """A span of time in seconds since the epoch."""

    begin: float
    end: float


def shares(machines: Sequence[Span], attempts: Sequence[Span]) -> list[float]:
    """Return the machine seconds of each attempt.

    An attempt has all machines while it lasts; simultaneous attempts share them equally.
    """
    taken_s = [0.0] * len(attempts)
    moments = sorted({at for each in attempts for at in each})
    for begin, end in itertools.pairwise(moments):
        now = [k for k, each in enumerate(attempts) if each.begin <= begin and each.end >= end]
        held_s = sum(_both(begin, end, *each) for each in machines)
        for k in now:
            taken_s[k] += held_s / len(now)
    return taken_s


def waits(
    machines: Sequence[MachineRecord], asked_at: float, began: float, until: float
) -> dict[str, float]:
    """Return the seconds that an attempt waited in a queue, which is free, and for the boot.

    Args:
        machines: The attempt's machines; the longest wait counts.
        asked_at: Start of the wait.
        began: Start of the attempt.
        until: End of the wait at the latest: an attempt may start without machines.
    """
    queue_s = [_both(asked_at, until, row.created_at, row.started_at) for row in machines]
    boot_s = [_both(asked_at, until, row.started_at, row.joined_at or began) for row in machines]
    return {"queue_s": max(queue_s), "boot_s": max(boot_s)} if machines else {}


def _both(begin: float, end: float, other_begin: float, other_end: float) -> float:
    return max(min(end, other_end) - max(begin, other_begin), 0.0)
