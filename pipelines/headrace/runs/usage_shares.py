"""Shares of attempts in the time and cost of their machines; pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.runs.costs import HOUR_S
from headrace.steps.usage import AttemptUsage


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span of time in seconds since the epoch, and its price per hour."""

    begin: float
    end: float
    usd_per_hour: float | None = None
    """US dollars; None if unknown (not 0)."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of machines."""

    node_s: float = 0.0
    """Seconds of machines."""
    usd: float | None = 0.0
    """US dollars; None if the price of a part is unknown."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """How an attempt used its machines; the rest was training and other work."""

    usd_staging: float | None
    usd_idle: float | None
    usd_failed: float | None
    idle_s: float
    """Idle seconds of machines."""
    failed_s: float
    """Seconds of machines in an attempt that did not succeed."""


def parts(machines: Sequence[Span], attempts: Sequence[Span]) -> list[Share]:
    """Return the share of each attempt in the machines of a lease.

    An attempt has all machines while it lasts; simultaneous attempts share them equally. Without
    machines the cost is unknown.
    """
    taken = [[0.0, 0.0, 0.0] for _ in attempts]  # seconds, US dollars, seconds without a price
    for (begin, end), held, usd_per_hour, unpriced in _times(machines, attempts):
        now = [k for k, each in enumerate(attempts) if each.begin <= begin and each.end >= end]
        for k in now:
            share_s = (end - begin) / len(now)
            taken[k][0] += held * share_s
            taken[k][1] += usd_per_hour * share_s / HOUR_S
            taken[k][2] += unpriced * share_s
    is_known = bool(machines)
    return [
        Share(node_s=node_s, usd=usd if is_known and not lacking else None)
        for node_s, usd, lacking in taken
    ]


def _times(
    machines: Sequence[Span], attempts: Sequence[Span]
) -> Iterator[tuple[tuple[float, float], int, float, int]]:
    """Yield times between changes: number of machines, US dollars per hour, number unpriced."""
    ends: list[tuple[float, int]] = []
    waiting = sorted(range(len(machines)), key=lambda k: machines[k].begin, reverse=True)
    moments = {at for each in (*machines, *attempts) for at in (each.begin, each.end)}
    for begin, end in itertools.pairwise(sorted(moments)):
        while waiting and machines[waiting[-1]].begin <= begin:
            k = waiting.pop()
            heapq.heappush(ends, (machines[k].end, k))
        while ends and ends[0][0] <= begin:
            heapq.heappop(ends)
        prices = [machines[k].usd_per_hour for _, k in ends]
        known = [usd for usd in prices if usd is not None]
        yield (begin, end), len(prices), sum(known), len(prices) - len(known)


def whole(machines: Sequence[Span], billed_s: Sequence[float]) -> Share:
    """Return the total of machines, by their billed seconds."""
    prices = [each.usd_per_hour for each in machines]
    usd = [
        price * paid_s / HOUR_S
        for price, paid_s in zip(prices, billed_s, strict=True)
        if price is not None
    ]
    return Share(node_s=sum(billed_s), usd=sum(usd) if len(usd) == len(prices) else None)


def rest(all_of_it: Share, taken: Share) -> Share:
    """Return what is left of machines after the share of attempts."""
    usd = None
    if all_of_it.usd is not None and taken.usd is not None:
        usd = max(all_of_it.usd - taken.usd, 0.0)
    return Share(node_s=max(all_of_it.node_s - taken.node_s, 0.0), usd=usd)


def split(part: Share, seconds: float, usage: AttemptUsage, *, succeeded: bool) -> Split:
    """Split an attempt's share by use.

    All of an attempt that did not succeed counts as failed, though the next one may resume from its
    checkpoint. Idle is the time without start, staging, training and evaluation, if reported.

    Args:
        part: Share of the attempt.
        seconds: Duration of the attempt.
        usage: Times that it reported.
        succeeded: Whether it succeeded or still runs.
    """
    if not succeeded:
        return Split(
            usd_staging=0.0, usd_idle=0.0, usd_failed=part.usd, idle_s=0.0, failed_s=part.node_s
        )
    reported = (usage.start_s, usage.staging_s, usage.train_s, usage.evaluate_s)
    known_s = [each for each in reported if each is not None]
    idle = _share(seconds - sum(known_s), seconds) if known_s else 0.0
    staging = _share(usage.staging_s or 0.0, seconds)
    return Split(
        usd_staging=None if part.usd is None else part.usd * staging,
        usd_idle=None if part.usd is None else part.usd * idle,
        usd_failed=0.0,
        idle_s=part.node_s * idle,
        failed_s=0.0,
    )


def _share(seconds: float, of_s: float) -> float:
    return min(max(seconds / of_s, 0.0), 1.0) if of_s > 0 else 0.0
