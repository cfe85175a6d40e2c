"""Shares of attempts in their machines, and how they used these, as fields of usage rows; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.rows import MachineRecord
from headrace.runs.costs import HOUR_S
from headrace.states import StepState


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

    def plus(self, other: Share, times: float) -> Share:
        """Return the sum with a multiple of another share."""
        usd = None if self.usd is None or other.usd is None else self.usd + times * other.usd
        return Share(node_s=self.node_s + times * other.node_s, usd=usd)


def parts(machines: Sequence[Span], attempts: Sequence[Span]) -> list[Share]:
    """Return the share of each attempt in the machines of a lease.

    An attempt has all machines while it lasts; simultaneous attempts share them equally. Without
    machines the cost is unknown.
    """
    taken = [Share(usd=0.0 if machines else None) for _ in attempts]
    moments = sorted({at for each in attempts for at in (each.begin, each.end)})
    for begin, end in itertools.pairwise(moments):
        now = [k for k, each in enumerate(attempts) if each.begin <= begin and each.end >= end]
        there = [each for each in machines if each.begin < end and each.end > begin]
        held = whole(there, [min(each.end, end) - max(each.begin, begin) for each in there])
        for k in now:
            taken[k] = taken[k].plus(held, 1 / len(now))
    return taken


def whole(machines: Sequence[Span], billed_s: Sequence[float]) -> Share:
    """Return the total of machines, by their billed seconds."""
    prices = [each.usd_per_hour for each in machines]
    usd = [
        price * paid_s / HOUR_S
        for price, paid_s in zip(prices, billed_s, strict=True)
        if price is not None
    ]
    return Share(node_s=sum(billed_s), usd=sum(usd) if len(usd) == len(prices) else None)


def rest(all_of_it: Share, taken: Iterable[Share]) -> Share:
    """Return what is left of machines after the shares of attempts."""
    left = all_of_it
    for each in taken:
        left = left.plus(each, -1)
    usd = None if left.usd is None else max(left.usd, 0.0)
    return Share(node_s=max(left.node_s, 0.0), usd=usd)


def figures(part: Share, seconds: float, usage: AttemptUsage, state: StepState) -> dict[str, Any]:
    """Return what an attempt took, and the parts for staging, idle time and failure.

    All of an attempt without success is failure; what is in no part was training and other work.

    Args:
        part: Share of the attempt.
        seconds: Duration of the attempt.
        usage: What it reported.
        state: Its state.
    """
    shares = {"failed": 1.0}
    if state is StepState.SUCCEEDED or not state.is_final:
        reported = (usage.start_s, usage.staging_s, usage.train_s, usage.evaluate_s)
        known_s = [each for each in reported if each is not None]
        idle = _share(seconds - sum(known_s), seconds) if known_s else 0.0
        shares = {"staging": _share(usage.staging_s or 0.0, seconds), "idle": idle}
    usd = {name: None if part.usd is None else part.usd * share for name, share in shares.items()}
    return {
        "node_s": part.node_s,
        "gpu_s": usage.gpus * seconds,
        "usd": part.usd,
        **{f"usd_{name}": usd.get(name, 0.0) for name in ("staging", "idle", "failed")},
        **{f"{name}_s": part.node_s * shares.get(name, 0.0) for name in ("idle", "failed")},
    }


def _share(seconds: float, of_s: float) -> float:
    return min(max(seconds / of_s, 0.0), 1.0) if of_s > 0 else 0.0


def terms(machines: Sequence[MachineRecord]) -> dict[str, Any]:
    """Return the type of machines, their mean price per hour and its source.

    The price is absent if that of a machine is unknown.
    """
    kind = {"node_kind": _joined(row.kind for row in machines)}
    prices = [row.usd_per_hour for row in machines if row.usd_per_hour is not None]
    if not prices or len(prices) < len(machines):
        return kind
    return {
        **kind,
        "usd_per_hour": sum(prices) / len(prices),
        "price_source": _joined(row.price_source for row in machines),
        "price_as_of": max(row.price_as_of for row in machines),
    }


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


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))
