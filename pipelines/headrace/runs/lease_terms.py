"""Price of an attempt's machines, and how long the attempt waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.ledger.rows import MachineRecord


def mean_price(machines: Sequence[MachineRecord]) -> float | None:
    """Return the mean US dollars per hour of a machine; None if a price is unknown."""
    prices = [row.usd_per_hour for row in machines if row.usd_per_hour is not None]
    return sum(prices) / len(prices) if prices and len(prices) == len(machines) else None


def terms(machines: Sequence[MachineRecord]) -> dict[str, Any]:
    """Return the type of machines, their price and its source, as fields of a usage row."""
    kind, price = _joined(row.kind for row in machines), mean_price(machines)
    if price is None:
        return {"node_kind": kind}
    return {
        "node_kind": kind,
        "usd_per_hour": price,
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
