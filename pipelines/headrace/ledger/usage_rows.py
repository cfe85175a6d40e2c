"""The ledger's rows of usage, and their sums at the prices of the machines."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import (
    ColumnElement,
    Double,
    Label,
    RowMapping,
    Text,
    TextClause,
    bindparam,
    literal_column,
    select,
    text,
)

from headrace.errors import LedgerError
from headrace.ledger.database import LedgerPart, Value, given
from headrace.ledger.rows import LeaseRecord, RunRecord, with_parts
from headrace.ledger.usage_records import FIGURES, IDLE, USAGE, UsageRecord, UsageSum

if TYPE_CHECKING:  # sums need no classes of sites
    from headrace.recipe.site import SitePrices

By = Literal["run", "trial", "user", "site", "recipe", "role", "kind", "cause", "month", "place"]

_OF_LEASES = {
    "run": "run_id", "user": "owner", "site": "site_name", "recipe": "recipe_name",
    "place": "role || ' of ' || site_name",
}  # fmt: skip
_OF_BYTES = ("usd_per_gb_month", "usd_per_fetched_gb")
_CHOSEN = {
    "run_id": "IN (SELECT run_id FROM headrace_runs WHERE run_id IN :run_id OR part_of IN :run_id)"
}
_BLOCK = 10_000
_HOUR_S, _DAY_S = 3600.0, 86_400
_EPOCH = date(1970, 1, 1).toordinal()


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
        """Return the usage of attempts of a run and its parts, of one trial or all, in order."""
        query = select(USAGE).where(USAGE.c.run_id.in_(with_parts(run_id)))
        query = query.filter_by(**given(trial=trial))
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
            query = query.where(USAGE.c.run_id.in_(with_parts(run_id)))
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
        prices: Mapping[str, SitePrices] | None = None,
        **only: str | Collection[str] | None,
    ) -> tuple[UsageSum, ...]:
        """Return sums of usage at the prices of their machines, the most expensive first.

        The time of machines that no attempt used is `idle`, on the day of the lease's end.

        Args:
            by: Grouping; None gives one sum of all. By trial only within one run.
            run_id: Run of the attempts, with its parts; None for all runs. By run, parts count as
                their suite.
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
        days = {"since": _day(since), "before": _day(before) or 2**40, "now": time.time()}
        chosen = {
            name: [value] if isinstance(value, str) else [*value]
            for name, value in given(run_id=run_id, **only).items()
        }
        values = {**days, **chosen}
        prices_of = {key: _price(key, prices or {}, values) for key in _OF_BYTES}
        query = _query(by, chosen, month=self._database.month, **prices_of)
        with self._database.read() as session:
            rows = session.execute(query, values)
            return tuple(UsageSum(str(name), *sums) for name, *sums in rows)[:limit]


def at_most(values: Iterable[Value], number: int = 200) -> Iterator[tuple[Value, ...]]:
    """Yield values in groups that fit into a query."""
    left = iter(values)
    while some := tuple(islice(left, number)):
        yield some


_ENERGY_WH = "coalesce(u.energy_wh + u.cpu_energy_wh, u.energy_wh, u.cpu_energy_wh)"
_OF_ALL = "FROM headrace_machines AS m WHERE m.lease_id = {row}.lease_id"
_RATE = f"""CASE {{row}}.machine_id
    WHEN '' THEN (SELECT CASE WHEN count(*) = count(usd_per_hour) THEN
        coalesce(sum(usd_per_hour * billed_s) / nullif(sum(billed_s), 0), avg(usd_per_hour)) END
        {_OF_ALL})
    ELSE (SELECT usd_per_hour {_OF_ALL} AND m.machine_id = {{row}}.machine_id) END"""
"""US dollars per hour of a row's machine, or the mean of its lease's; null if one is unknown."""


def _of_trial(value: str) -> ColumnElement[float | None]:
    found = f"""(SELECT CASE WHEN count(*) = count({value}) THEN sum({value}) END
        FROM headrace_usage AS u WHERE u.step = 'suite' AND u.trial = headrace_trials.number
        AND u.run_id IN (SELECT w.run_id FROM headrace_runs AS w
            WHERE w.run_id = headrace_trials.run_id OR w.part_of = headrace_trials.run_id))"""
    return literal_column(found, Double())


USD_OF_TRIAL = _of_trial(f"node_s * ({_RATE.format(row='u')}) / {_HOUR_S}")
"""US dollars of the attempts at a row's trial; null if those of one are unknown."""

WH_OF_TRIAL = _of_trial(_ENERGY_WH)
"""Watt-hours of the attempts at a row's trial; null if one was not measured."""


def _named(name: str) -> Label[str]:
    """Return a text of a row's machines; `several` if they differ."""
    row = "headrace_usage"
    found = f"""(SELECT CASE min({name}) WHEN max({name}) THEN min({name}) ELSE 'several' END
        {_OF_ALL.format(row=row)} AND {row}.machine_id IN ('', m.machine_id))"""
    return literal_column(found, Text()).label("machine_kind" if name == "kind" else name)


_PRICE: ColumnElement[float | None] = literal_column(
    f"({_RATE.format(row='headrace_usage')})", Double()
)
PRICED = (
    select(
        USAGE,
        *(LeaseRecord.__table__.c[name] for name in ("owner", "site_name", "role")),
        RunRecord.__table__.c.recipe_name,
        *(_named(name) for name in ("kind", "price_source", "price_as_of")),
        _PRICE.label("usd_per_hour"),
        (USAGE.c.node_s * _PRICE / _HOUR_S).label("usd"),
    )
    .join(LeaseRecord.__table__, LeaseRecord.lease_id == USAGE.c.lease_id)
    .join(RunRecord.__table__, RunRecord.run_id == USAGE.c.run_id)
)
"""Rows of usage with user, site, role, recipe, and the price of their machines."""

_SUMS = f"""WITH leases AS (
    SELECT lease_id, coalesce(nullif(part_of, ''), l.run_id) AS run_id, l.owner, l.site_name, role,
        recipe_name,
        CAST(coalesce(ended_at, :now) AS BIGINT) / {_DAY_S} AS day
    FROM headrace_leases AS l JOIN headrace_runs AS r ON r.run_id = l.run_id
    WHERE coalesce(ended_at, :now) >= :since * {_DAY_S} {{chosen}}
), attempts AS (
    SELECT u.*, {_ENERGY_WH} AS wh, coalesce(until - started_at, 0) AS seconds,
        CASE WHEN cause IN ('queued', 'running', 'succeeded') THEN 0 ELSE 1 END AS failed,
        coalesce(start_s, 0) + coalesce(staging_s, 0) + coalesce(train_s, 0)
            + coalesce(evaluate_s, 0) AS known_s
    FROM headrace_usage AS u JOIN leases ON leases.lease_id = u.lease_id WHERE {{of_run}}
), parts AS (
    SELECT lease_id, machine_id, {{kind}} AS kind, {{cause}} AS cause, {{trial}} AS trial,
        CAST(until AS BIGINT) / {_DAY_S} AS day, sum(node_s) AS node_s,
        count(nullif(attempts.kind, 'copy')) AS attempts,
        sum(gpus * seconds) AS gpu_s, sum(queue_s) AS queue_s,
        sum(CASE WHEN failed = 1 OR seconds <= 0 THEN 0 WHEN staging_s >= seconds THEN node_s
            ELSE node_s * coalesce(staging_s, 0) / seconds END) AS staging_s,
        sum(CASE WHEN failed = 1 OR known_s >= seconds
            OR coalesce(start_s, staging_s, train_s, evaluate_s) IS NULL THEN 0
            ELSE node_s * (seconds - known_s) / seconds END) AS idle_s,
        sum(failed * node_s) AS failed_s,
        sum(CASE WHEN wh IS NULL THEN 0 ELSE node_s END) AS measured_s, sum(wh) AS energy_wh,
        sum(train_s) AS train_s, sum(samples) AS samples, sum(stored_bytes) AS stored_bytes,
        sum(fetched_bytes) AS fetched_bytes
    FROM attempts GROUP BY 1, 2, 3, 4, 5, 6
), priced AS (
    SELECT parts.*, {_RATE.format(row="parts")} AS rate FROM parts
), idle AS (
    SELECT m.lease_id, leases.day, billed_s AS node_s, billed_s * usd_per_hour AS paid,
        CASE WHEN usd_per_hour IS NULL THEN 1 ELSE 0 END AS unpriced
    FROM headrace_machines AS m JOIN leases ON leases.lease_id = m.lease_id
    UNION ALL SELECT p.lease_id, leases.day, -node_s, -node_s * rate, 0
    FROM priced AS p JOIN leases ON leases.lease_id = p.lease_id
    WHERE EXISTS (SELECT 1 FROM headrace_machines AS m WHERE m.lease_id = p.lease_id)
), every AS (
    SELECT lease_id, kind, cause, trial, day, attempts,
        CASE WHEN rate IS NULL THEN attempts ELSE 0 END AS unpriced, node_s * rate AS paid,
        {", ".join(FIGURES)} FROM priced
    UNION ALL SELECT lease_id, '{IDLE}', '{IDLE}', 0, day, 0, unpriced, paid,
        {", ".join("node_s" if name in ("node_s", "idle_s") else "NULL" for name in FIGURES)}
    FROM idle
)
SELECT {{name}} AS name, CAST(sum(attempts) AS BIGINT), CAST(sum(unpriced) AS BIGINT),
    sum(paid) / {_HOUR_S} AS usd,
    {
    ", ".join(
        f"CAST(coalesce(sum({name}), {'NULL' if name == 'energy_wh' else 0}) AS DOUBLE PRECISION)"
        for name in FIGURES
    )
},
    sum(stored_bytes * {{usd_per_gb_month}}) / 1e9,
    sum(fetched_bytes * {{usd_per_fetched_gb}}) / 1e9
FROM every JOIN leases ON leases.lease_id = every.lease_id
WHERE every.day >= :since AND every.day < :before
GROUP BY 1 ORDER BY usd DESC NULLS LAST, name
"""
"""Sums over attempts, and over machines less what attempts took of them, which is idle time.

All of an attempt without success is failure. Idle time of others is what they report nothing of.
"""


def _query(by: By | None, only: Mapping[str, Any], *, month: str, **prices: str) -> TextClause:
    """Return the query of sums."""
    parts = {"kind": "''", "cause": "''", "trial": "0"}
    name = {"month": month, None: "''"}.get(by) or _OF_LEASES.get(by or "", by)
    query = text(
        _SUMS.format(
            **{key: key if key == by else constant for key, constant in parts.items()},
            name=name,
            chosen="".join(f" AND l.{key} {_CHOSEN.get(key, f'IN :{key}')}" for key in only),
            of_run=f"u.run_id {_CHOSEN['run_id']}" if "run_id" in only else "1 = 1",
            **prices,
        )
    )
    return query.bindparams(*(bindparam(key, expanding=True, type_=Text()) for key in only))


def _price(key: str, prices: Mapping[str, SitePrices], values: dict[str, Any]) -> str:
    """Return US dollars of a GB by the site of a lease, null elsewhere; add them to `values`."""
    known = {site: usd for site, each in prices.items() if (usd := getattr(each, key)) is not None}
    values |= {f"{key}_site_{k}": site for k, site in enumerate(known)}
    values |= {f"{key}_usd_{k}": usd for k, usd in enumerate(known.values())}
    cases = " ".join(f"WHEN :{key}_site_{k} THEN :{key}_usd_{k}" for k in range(len(known)))
    priced = f"CASE leases.site_name {cases} END" if known else "NULL"
    return f"CAST({priced} AS DOUBLE PRECISION)"


def _day(since: str) -> int:
    """Return the number of a day since the epoch; 0 for an empty text."""
    whole = f"{since}-01" if len(since) == len("2026-11") else since
    return date.fromisoformat(whole).toordinal() - _EPOCH if since else 0
