"""The ledger's rows of usage, and their sums at the prices of the machines."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import islice
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    RowMapping,
    ScalarSelect,
    Select,
    and_,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from headrace.errors import LedgerError
from headrace.ledger.database import LedgerPart, Value, given, grouped
from headrace.ledger.rows import LeaseRecord, MachineRecord, RunRecord
from headrace.ledger.usage_records import (
    FIGURES,
    IDLE,
    UNKNOWN,
    USAGE,
    UsageRecord,
    UsageSum,
)
from headrace.states import StepState

By = Literal["run", "trial", "user", "site", "recipe", "role", "kind", "cause", "month"]

_OF_LEASES = {
    "run": "run_id",
    "user": "owner",
    "site": "site_name",
    "recipe": "recipe_name",
    "role": "role",
}
_NOT_FAILED = (StepState.QUEUED, StepState.RUNNING, StepState.SUCCEEDED)
_LEASE, _RUN, _MACHINE = LeaseRecord.__table__, RunRecord.__table__, MachineRecord.__table__
_BLOCK = 10_000
_HOUR_S, _DAY_S, _GB = 3600.0, 86_400, 1e9
_EPOCH = date(1970, 1, 1).toordinal()


class BytePrices(NamedTuple):
    """US dollars per GB (10⁹ bytes); null: unknown."""

    stored_month: float | None = None
    """For a month of each GB of packed datasets."""
    fetched: float | None = None
    """For each GB read from an object store."""


class UsageRows(LedgerPart):
    """The part of the ledger with the usage of attempts."""

    def put_usage(self, rows: Iterable[UsageRecord]) -> None:
        """Enter or replace the usage of attempts, in one transaction.

        Raises:
            LedgerError: Their run or lease is not in the ledger.
        """
        if entered := [dict(row) for row in rows]:
            with self._database.write() as session:
                self._database.put(session, USAGE, entered)

    def usage(self, run_id: str, *, trial: int | None = None) -> tuple[UsageRecord, ...]:
        """Return the usage of attempts of a run, of one trial or all, the first ones first."""
        query = select(USAGE).filter_by(**given(run_id=run_id, trial=trial))
        order = (USAGE.c[name] for name in ("trial", "created_at", "step", "attempt"))
        with self._database.read() as session:
            found = session.execute(query.order_by(*order)).mappings()
            return tuple(UsageRecord.model_construct(**row) for row in found)

    def usage_blocks(
        self, run_id: str | None = None, since: str = ""
    ) -> Iterator[Sequence[RowMapping]]:
        """Yield blocks of rows of `PRICED`, of one run or all, from one day on."""
        query = PRICED.where(USAGE.c.until >= _day(since) * _DAY_S)
        if run_id is not None:
            query = query.where(USAGE.c.run_id == run_id)
        with self._database.read() as session:
            found = session.execute(query, execution_options={"yield_per": _BLOCK})
            yield from found.mappings().partitions()

    def usage_sums(
        self,
        by: By | None = None,
        *,
        run_id: str | None = None,
        since: str = "",
        before: str = "",
        limit: int | None = None,
        prices: Mapping[str, BytePrices] | None = None,
        **only: str | Collection[str] | None,
    ) -> tuple[UsageSum, ...]:
        """Return sums of usage at the prices of their machines, the most expensive first.

        The time of machines that no attempt used is `idle`, on the day of the lease's end.

        Args:
            by: Grouping; None gives one sum of all. By trial only within one run.
            run_id: Run of the attempts; None for all runs.
            since: First day, as `2026-11-01`, or month.
            before: Day after the last one; empty for today.
            limit: Most groups; None for all.
            prices: Prices of bytes by site.
            only: A value of `owner`, `site_name`, `role`, `backend` or `lease_id`, or several
                values; None for all.

        Raises:
            LedgerError: `by` is trial without a run.
        """
        if by == "trial" and run_id is None:
            raise LedgerError("Usage by trial needs one suite", "Give its run.")
        leases = _leases(_day(since), given(run_id=run_id, **only))
        days = (_day(since), _day(before) or sys.maxsize)
        query = _sums(by, leases, _parts(by, leases, run_id), days, prices or {})
        with self._database.read() as session:
            found = session.execute(query if by == "month" else query.limit(limit))
            sums = [_sum_of(*row) for row in found if row[1] is not None]
        return tuple(_by_month(sums)[:limit] if by == "month" else sums)


def rate_of(rows: FromClause) -> ColumnElement[float | None]:
    """Return US dollars per hour of the machine of a row, or the mean of its lease's machines.

    Null if a machine has no price.
    """
    usd, billed_s = _MACHINE.c.usd_per_hour, _MACHINE.c.billed_s
    paid, billed = func.sum(usd * billed_s), func.nullif(func.sum(billed_s), 0.0)
    mean = func.coalesce(paid / billed, func.avg(usd))
    return _of_machines(rows, usd, case((func.count() == func.count(usd), mean)))


def _of_machines(
    rows: FromClause, own: ColumnElement[Any], of_all: ColumnElement[Any]
) -> ColumnElement[Any]:
    of_lease = _MACHINE.c.lease_id == rows.c.lease_id
    of_one = and_(of_lease, _MACHINE.c.machine_id == rows.c.machine_id)
    whole, one = select(of_all).where(of_lease), select(own).where(of_one)
    found = [each.correlate(rows).scalar_subquery() for each in (whole, one)]
    return case((rows.c.machine_id == "", found[0]), else_=found[1])


def _named(name: str) -> ColumnElement[Any]:
    """Return a text of a row's machines; `several` if they differ."""
    own = _MACHINE.c[name]
    low, high = func.min(own), func.max(own)
    found = _of_machines(USAGE, own, case((low == high, low), else_="several"))
    return found.label("machine_kind" if name == "kind" else name)


def cost_of(run_id: Any, trial: Any) -> ScalarSelect[float | None]:
    """Return US dollars of all attempts at a trial; null if those of an attempt are unknown."""
    return _of_trial(run_id, trial, USAGE.c.node_s * rate_of(USAGE) / _HOUR_S)


def energy_of(run_id: Any, trial: Any) -> ScalarSelect[float | None]:
    """Return watt-hours of all attempts at a trial; null if one was not measured."""
    return _of_trial(run_id, trial, _energy_wh())


def _energy_wh() -> ColumnElement[float | None]:
    """Return the sum of what was measured of GPUs and CPUs; null if neither was."""
    both = (USAGE.c.energy_wh, USAGE.c.cpu_energy_wh)
    return func.coalesce(both[0] + both[1], *both)


def _of_trial(run_id: Any, trial: Any, value: ColumnElement[Any]) -> ScalarSelect[float | None]:
    every = select(case((func.count() == func.count(value), func.sum(value))))
    own = and_(USAGE.c.run_id == run_id, USAGE.c.step == "suite", USAGE.c.trial == trial)
    return every.where(own).correlate_except(USAGE).scalar_subquery()


def at_most(values: Iterable[Value], number: int = 200) -> Iterator[tuple[Value, ...]]:
    """Yield values in groups that fit into a query."""
    left = iter(values)
    while some := tuple(islice(left, number)):
        yield some


PRICED = (
    select(
        USAGE,
        *(_LEASE.c[name] for name in ("owner", "site_name", "role")),
        _RUN.c.recipe_name,
        *(_named(name) for name in ("kind", "price_source", "price_as_of")),
        rate_of(USAGE).label("usd_per_hour"),
        (USAGE.c.node_s * rate_of(USAGE) / _HOUR_S).label("usd"),
    )
    .join(_LEASE, _LEASE.c.lease_id == USAGE.c.lease_id)
    .join(_RUN, _RUN.c.run_id == USAGE.c.run_id)
)
"""Rows of usage with user, site, role, recipe, and the price of their machines."""


def _day(since: str) -> int:
    """Return the number of a day since the epoch; 0 for an empty text."""
    whole = f"{since}-01" if len(since) == len("2026-11") else since
    return date.fromisoformat(whole).toordinal() - _EPOCH if since else 0


def _day_of(at: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(at, BigInteger) // _DAY_S


def _leases(day: int, only: Mapping[str, str | Collection[str]]) -> CTE:
    """Return leases that took machines since a day, with what groups them."""
    until = func.coalesce(_LEASE.c.ended_at, time.time())
    query = select(
        *(_LEASE.c[name] for name in ("lease_id", "run_id", "owner", "site_name", "role")),
        _RUN.c.recipe_name,
        _day_of(until).label("day"),
    ).join(_RUN, _RUN.c.run_id == _LEASE.c.run_id)
    for name, each in only.items():
        query = query.where(_LEASE.c[name].in_([each] if isinstance(each, str) else each))
    return query.where(_day_of(until) >= day).cte("leases")


def _parts(by: By | None, leases: CTE, run_id: str | None) -> CTE:
    """Return figures of attempts, summed by what has one price and belongs to one group."""
    groups = {
        "lease_id": USAGE.c.lease_id,
        "machine_id": USAGE.c.machine_id,
        "kind": USAGE.c.kind if by == "kind" else literal(""),
        "cause": USAGE.c.cause if by == "cause" else literal(""),
        "trial": USAGE.c.trial if by == "trial" else literal(0),
        "day": _day_of(USAGE.c.until),
    }
    sums = (func.sum(value).label(name) for name, value in _figures().items())
    columns = (column.label(name) for name, column in groups.items())
    query = select(*columns, func.count().label("attempts"), *sums).join(
        leases, leases.c.lease_id == USAGE.c.lease_id
    )
    if run_id is not None:  # found by the key
        query = query.where(USAGE.c.run_id == run_id)
    return query.group_by(*(column for column in groups.values())).cte("parts")


def _figures() -> dict[str, ColumnElement[Any]]:
    """Return what an attempt took, with its shares of staging, idle time and failure.

    All of an attempt without success is failure; what is in no share was training and other work.
    """
    row = USAGE.c
    seconds = func.coalesce(row.until - row.started_at, 0.0)
    reported = (row.start_s, row.staging_s, row.train_s, row.evaluate_s)
    known_s = sum((func.coalesce(each, 0.0) for each in reported), literal(0.0))
    failed = row.cause.not_in([state.value for state in _NOT_FAILED])
    nothing = or_(failed, seconds <= 0)
    idle = case(
        (or_(nothing, func.coalesce(*reported).is_(None), known_s >= seconds), 0.0),
        else_=(seconds - known_s) / func.nullif(seconds, 0.0),
    )
    staged_s = func.coalesce(row.staging_s, 0.0)
    staging = case(
        (nothing, 0.0), (staged_s >= seconds, 1.0), else_=staged_s / func.nullif(seconds, 0.0)
    )
    return {name: row[name] for name in FIGURES if name in row} | {
        "gpu_s": row.gpus * seconds,
        "staging_s": row.node_s * staging,
        "idle_s": row.node_s * idle,
        "failed_s": case((failed, row.node_s), else_=0.0),
        "measured_s": case((_energy_wh().is_not(None), row.node_s), else_=0.0),
        "energy_wh": _energy_wh(),
    }


def _sums(
    by: By | None,
    leases: CTE,
    parts: CTE,
    days: tuple[int, int],
    prices: Mapping[str, BytePrices],
) -> Select[Any]:
    """Return sums over attempts, and over machines less what attempts took of them."""
    rate, of_lease = rate_of(parts), leases.c.lease_id == parts.c.lease_id
    usd, no_price = (
        parts.c.node_s * rate / _HOUR_S,
        case((rate.is_(None), parts.c.attempts), else_=0),
    )
    groups = [parts.c[name] for name in ("lease_id", "kind", "cause", "trial", "day")]
    attempts = select(*groups, parts.c.attempts, no_price.label("unpriced"), usd.label("usd"),
                      *(parts.c[name] for name in FIGURES))  # fmt: skip
    machine = _MACHINE.c
    is_counted = select(1).where(machine.lease_id == parts.c.lease_id).exists()
    taken = select(*_idle(parts, leases, 0, -usd, -parts.c.node_s)).join(leases, of_lease)
    unknown = case((machine.usd_per_hour.is_(None), 1), else_=0)
    paid = machine.billed_s * machine.usd_per_hour / _HOUR_S
    held = select(*_idle(_MACHINE, leases, unknown, paid, machine.billed_s)).join(
        leases, leases.c.lease_id == machine.lease_id
    )
    rows = union_all(attempts, held, taken.where(is_counted)).cte("rows")
    name: ColumnElement[Any] = literal("")
    if by in _OF_LEASES:
        name = leases.c[_OF_LEASES[by]]
    elif by is not None:
        name = rows.c["day" if by == "month" else by]
    sums: list[ColumnElement[Any]] = [
        cast(func.sum(rows.c[each]), Double()) for each in ("usd", *FIGURES)
    ]
    counts = [cast(func.sum(rows.c[each]), BigInteger()) for each in ("attempts", "unpriced")]
    besides: list[ColumnElement[Any]] = [
        cast(func.sum(rows.c[figure] * _price(leases, prices, key)), Double())
        for figure, key in (("stored_bytes", "stored_month"), ("fetched_bytes", "fetched"))
    ]
    query = select(name.label("name"), *counts, *sums, *besides)
    query = query.join(leases, leases.c.lease_id == rows.c.lease_id)
    query = query.where(rows.c.day >= days[0], rows.c.day < days[1])
    grouped_by = query if by is None else query.group_by(name)
    return grouped_by.order_by(sums[0].desc().nulls_last(), name)


def _idle(
    source: FromClause, leases: CTE, unpriced: Any, usd: ColumnElement[Any], node_s: Any
) -> list[ColumnElement[Any]]:
    """Return the columns of idle time, which are added up over machines and attempts."""
    figures = [
        (node_s if name in ("node_s", "idle_s") else cast(null(), Double())).label(name)
        for name in FIGURES
    ]
    kind, trial = literal(IDLE), literal(0)
    groups = (source.c.lease_id, kind.label("kind"), kind.label("cause"), trial.label("trial"))
    counts = (literal(0).label("attempts"), cast(unpriced, BigInteger).label("unpriced"))
    return [*groups, leases.c.day, *counts, usd.label("usd"), *figures]


def _price(leases: CTE, prices: Mapping[str, BytePrices], key: str) -> ColumnElement[Any]:
    known = {site: usd for site, each in prices.items() if (usd := getattr(each, key)) is not None}
    if not known:
        return cast(null(), Double())
    return case(known, value=leases.c.site_name) / _GB


def _sum_of(name: Any, *sums: Any) -> UsageSum:
    found = UsageSum(str(name), *sums)
    nulls = {key for key, value in found._asdict().items() if value is None}
    known: dict[str, Any] = dict.fromkeys(nulls.difference(UNKNOWN), 0.0)
    return found._replace(**known)


def _by_month(days: Sequence[UsageSum]) -> list[UsageSum]:
    """Add up sums of days by month, the most expensive first."""
    months = grouped(
        (date.fromordinal(int(each.name) + _EPOCH).strftime("%Y-%m"), each[1:]) for each in days
    )
    found = [
        UsageSum(month, *map(_added, zip(*some, strict=True))) for month, some in months.items()
    ]
    return sorted(found, key=lambda each: (each.usd is None, -(each.usd or 0.0), each.name))


def _added(values: Iterable[Any]) -> Any:
    known = [each for each in values if each is not None]
    return sum(known) if known else None
