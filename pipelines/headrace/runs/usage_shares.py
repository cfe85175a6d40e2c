"""How the time and money of machines are shared out between the attempts that used them; pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.runs.costs import HOUR_S
from headrace.steps.usage import AttemptUsage


@dataclass(frozen=True, kw_only=True)
class Span:
    """A time, seconds since the epoch, and what an hour of it costs."""

    begin: float
    end: float
    usd_per_hour: float | None = None
    """US dollars; None where nobody told, which is not 0."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What somebody took of machines."""

    node_s: float = 0.0
    """Seconds of machines."""
    usd: float | None = 0.0
    """US dollars; None where the price of a part is not known."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """What became of an attempt's machines; the rest was training, and other work."""

    usd_staging: float | None
    usd_idle: float | None
    usd_failed: float | None
    idle_s: float
    """Seconds of machines in which nothing was done."""
    failed_s: float
    """Seconds of machines of an attempt that did not succeed."""


def parts(machines: Sequence[Span], attempts: Sequence[Span]) -> list[Share]:
    """What each attempt took of the machines of a lease.

    An attempt takes all of them as long as it lasts; of attempts at once each takes an equal part.
    Without any machine nobody knows what they cost.
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
    """Times between changes: machines there, US dollars an hour of them, how many have no price."""
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
    """What machines took in all, of which so many seconds are to be paid."""
    prices = [each.usd_per_hour for each in machines]
    usd = [
        price * paid_s / HOUR_S
        for price, paid_s in zip(prices, billed_s, strict=True)
        if price is not None
    ]
    return Share(node_s=sum(billed_s), usd=sum(usd) if len(usd) == len(prices) else None)


def rest(all_of_it: Share, taken: Share) -> Share:
    """What is left of machines when attempts have taken theirs."""
    usd = None
    if all_of_it.usd is not None and taken.usd is not None:
        usd = max(all_of_it.usd - taken.usd, 0.0)
    return Share(node_s=max(all_of_it.node_s - taken.node_s, 0.0), usd=usd)


def split(part: Share, seconds: float, usage: AttemptUsage, *, succeeded: bool) -> Split:
    """What became of an attempt's machines.

    An attempt that did not succeed is failed as a whole, though the next one goes on from its last
    checkpoint. Idle is what of its time was neither start, staging, training nor evaluation, where
    it told of these.

    Args:
        part: What the attempt took.
        seconds: How long it lasted.
        usage: What it told of its time.
        succeeded: Whether it ended well, or still runs.
    """
    if not succeeded:
        return Split(
            usd_staging=0.0, usd_idle=0.0, usd_failed=part.usd, idle_s=0.0, failed_s=part.node_s
        )
    told = (usage.start_s, usage.staging_s, usage.train_s, usage.evaluate_s)
    known_s = [each for each in told if each is not None]
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
