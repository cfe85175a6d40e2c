"""The terms on which an attempt had its machines: their price, and how long it waited for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.ledger.rows import MachineRecord


def mean_price(machines: Sequence[MachineRecord]) -> float | None:
    """US dollars an hour of one of them; None where a price is not known."""
    prices = [row.usd_per_hour for row in machines if row.usd_per_hour is not None]
    return sum(prices) / len(prices) if prices and len(prices) == len(machines) else None


def terms(machines: Sequence[MachineRecord]) -> dict[str, Any]:
    """Type of machines, their price and who told it, as a row of usage names them."""
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
    """Seconds of an attempt's wait for machines in a queue, which is free, and for their boot.

    Args:
        machines: The attempt's; the wait for the latest of them counts.
        asked_at: Since when it waited.
        began: When it began.
        until: The latest at which it waited: it may have begun without machines.
    """
    queue_s = [_both(asked_at, until, row.created_at, row.started_at) for row in machines]
    boot_s = [_both(asked_at, until, row.started_at, row.joined_at or began) for row in machines]
    return {"queue_s": max(queue_s), "boot_s": max(boot_s)} if machines else {}


def _both(begin: float, end: float, other_begin: float, other_end: float) -> float:
    return max(min(end, other_end) - max(begin, other_begin), 0.0)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, words)))
