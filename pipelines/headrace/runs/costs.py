"""Costs of machines in the ledger, of a run or a lease."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord, MachineRecord
from headrace.record import Record

LEAST_BILLED_S = 60.0
"""Least seconds that an instance is billed for; then each second counts.

Source: https://aws.amazon.com/ec2/pricing/on-demand/."""

HOUR_S = 3600.0


class CostLine(Record):
    """Cost of machines of a kind."""

    role: str
    """Role of their leases; empty if costs are not split by role."""
    kind: str
    """Type of the machines."""
    market: str
    """How they are billed, as spot or on demand."""
    machines: int
    """Number of machines."""
    hours: float
    """Billed hours of all of them."""
    usd: float | None
    """US dollars; null where a price is not known."""
    price: str
    """Price per hour and its source, for the user."""


class Cost(Record):
    """Cost of the machines of a run or a lease so far."""

    usd: float
    """US dollars, of the machines whose prices are known."""
    hours: float
    """Billed hours of all machines."""
    unpriced: int
    """Number of machines without a known price, which are not in `usd`."""
    estimated: int
    """Machines whose end was not reported: their last sign of life counts."""
    lines: tuple[CostLine, ...]
    """Its parts, the most expensive first."""


class BudgetRow(Record):
    """A budget of a site for a month."""

    key: str
    """As in the site file: `limits.budget_month`, `limits.gpu_hours_team`."""
    site: str
    whose: str
    """User or team; empty for the whole site."""
    unit: Literal["usd", "gpu_hours"]
    most: float
    spent: float


def billed_s(started_at: float, until: float, least_s: float = LEAST_BILLED_S) -> float:
    """Return the seconds that a machine is billed for: of an instance at least a minute."""
    return max(math.ceil(until - started_at), least_s)


def has_price(row: MachineRecord) -> bool:
    """Whether a machine costs money; of other machines only the time is known."""
    return row.usd_per_hour is not None or bool(row.market)


def cost_of(
    rows: Iterable[MachineRecord], now: float, roles: Mapping[str, str] | None = None
) -> Cost:
    """Return the cost of machines so far; pure.

    Args:
        rows: The machines; those that have not ended count until now.
        now: Time in seconds since the epoch.
        roles: Roles by lease, to split the cost by role.
    """
    groups: dict[tuple[str, str, str], list[MachineRecord]] = {}
    for row in rows:
        role = (roles or {}).get(row.lease_id, "")
        least_s = LEAST_BILLED_S if row.market else 0.0
        open_s = billed_s(row.started_at, now, least_s)
        paid_s = row.billed_s if row.ended_at is not None else open_s
        groups.setdefault((role, row.kind, row.market), []).append(replace(row, billed_s=paid_s))
    lines = [_line(*key, group) for key, group in groups.items()]
    every = [row for group in groups.values() for row in group]
    return Cost(
        usd=sum(_usd(row) for row in every),
        hours=sum(row.billed_s for row in every) / HOUR_S,
        unpriced=sum(row.usd_per_hour is None for row in every),
        estimated=sum(row.is_estimate for row in every),
        lines=tuple(sorted(lines, key=lambda line: line.usd or 0.0, reverse=True)),
    )


def _usd(row: MachineRecord) -> float:
    return (row.usd_per_hour or 0.0) * row.billed_s / HOUR_S


def _line(role: str, kind: str, market: str, rows: Sequence[MachineRecord]) -> CostLine:
    prices = sorted({row.usd_per_hour for row in rows if row.usd_per_hour is not None})
    sources = sorted({" of ".join(filter(None, (row.price_source, row.price_as_of)))
                      for row in rows if row.price_source})  # fmt: skip
    is_known = all(row.usd_per_hour is not None for row in rows)
    span = " to ".join(f"${usd:.6g}" for usd in dict.fromkeys((*prices[:1], *prices[-1:])))
    return CostLine(
        role=role,
        kind=kind,
        market=market,
        machines=len(rows),
        hours=sum(row.billed_s for row in rows) / HOUR_S,
        usd=sum(_usd(row) for row in rows) if is_known else None,
        price=f"{span} an hour ({'; '.join(sources)})" if prices else "price not known",
    )


def known_cost(
    machines: Iterable[MachineRecord], leases: Iterable[LeaseRecord], now: float
) -> Cost | None:
    """Return the cost of machines by the roles of their leases; None if none costs money."""
    rows = [row for row in machines if has_price(row)]
    return cost_of(rows, now, {lease.lease_id: lease.role for lease in leases}) if rows else None


def run_cost(run_id: str, now: float | None = None, *, whole: bool = True) -> Cost | None:
    """Return what a run has cost, `whole` with its parts; None if no machine is recorded."""
    ledger = open_ledger()
    of_run = {run_id: ledger.machines(run_id=run_id)} if not whole else ledger.machines_of([run_id])
    leases = ledger.leases(run_id=run_id)
    return known_cost(of_run.get(run_id, ()), leases, time.time() if now is None else now)


def start_split(row: MachineRecord) -> dict[str, float | None]:
    """Return seconds of a machine's start by phase; None if unknown."""
    names = ("queue_wait_s", "boot_s", "software_s", "join_s")
    times = (row.created_at, row.started_at, row.booted_at, row.prepared_at, row.joined_at)
    return {
        name: None if begin is None or end is None else max(end - begin, 0.0)
        for name, (begin, end) in zip(names, itertools.pairwise(times), strict=True)
    }
