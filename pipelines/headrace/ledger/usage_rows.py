"""The ledger's rows of usage, and their sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    RowMapping,
    ScalarSelect,
    Select,
    SQLColumnExpression,
    and_,
    case,
    cast,
    column,
    delete,
    func,
    literal,
    select,
    values,
)
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from headrace.errors import LedgerError
from headrace.ledger.database import Database, LedgerPart, Value, given
from headrace.ledger.usage_records import (
    COUNTS,
    FIGURES,
    IDLE,
    KEY,
    KEYS,
    SUMS,
    USAGE,
    UsageRecord,
    UsageSum,
)

By = Literal["suite", "trial", "user", "site", "recipe", "role", "kind", "cause", "month"]

_COLUMNS = {"user": "owner", "site": "site_name", "recipe": "recipe_name", "month": "day"}
_BLOCK = 10_000


class UsageRows(LedgerPart):
    """The part of the ledger with the usage of attempts."""

    def put_usage(self, rows: Iterable[UsageRecord]) -> None:
        """Enter or replace the usage of attempts, in one transaction.

        Raises:
            LedgerError: Their run or lease is not in the ledger.
        """
        if entered := tuple(rows):
            with self._database.write("usage") as session:
                enter_usage(self._database, session, entered)

    def usage(self, run_id: str, *, trial: int | None = None) -> tuple[UsageRecord, ...]:
        """Return the usage of attempts of a run, of one trial or all, the first ones first."""
        query = select(USAGE).filter_by(**given(run_id=run_id, trial=trial))
        order = (USAGE.c[name] for name in ("trial", "created_at", "step", "attempt"))
        with self._database.read() as session:
            return tuple(_records(session, query.order_by(*order)))

    def usage_blocks(
        self, run_id: str | None = None, since: str = ""
    ) -> Iterator[Sequence[RowMapping]]:
        """Yield blocks of usage rows by column, of one run or all, from one moment.

        Args:
            run_id: Run of the attempts; None for all runs.
            since: First day.
        """
        query = select(USAGE).where(USAGE.c.day >= since).filter_by(**given(run_id=run_id))
        with self._database.read() as session:
            found = session.execute(query, execution_options={"yield_per": _BLOCK})
            yield from found.mappings().partitions()

    def usage_sums(
        self,
        by: By | None = None,
        *,
        run_id: str | None = None,
        since: str = "",
        limit: int | None = None,
        sites: Collection[str] | None = None,
        **only: str,
    ) -> tuple[UsageSum, ...]:
        """Return sums of usage, the most expensive first.

        Args:
            by: Grouping; None gives one sum of all. By trial only within one run.
            run_id: Run of the attempts; None for all runs.
            since: First day, as `2026-11-01`.
            limit: Most groups; None for all.
            sites: Sites of the attempts; None for all.
            only: Further conditions: `owner`, `site_name`, `suite`, `lease_id`, `kind`.

        Raises:
            LedgerError: `by` is trial without a run.
        """
        if by == "trial" and run_id is None:
            raise LedgerError("Usage by trial needs one suite", "Give its run.")
        with self._database.read() as session:
            query = _sums(by, run_id, since, only, sites).limit(limit)
            found = session.execute(query)
            return tuple(UsageSum(str(name), *sums) for name, entries, *sums in found if entries)


def enter_usage(database: Database, session: Session, rows: Sequence[UsageRecord]) -> None:
    """Enter rows of usage in a transaction of the section `usage`, and update their sums."""
    newest = {tuple(getattr(row, name) for name in KEY): row for row in rows}
    changes: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in _known(session, newest):
        changes[_group(row)].subtract(_figures(row))
    for row in newest.values():
        changes[_group(row)].update(_figures(row))
    database.put(session, USAGE, [dict(row) for row in newest.values()])
    sums = [dict(zip(KEYS, group, strict=True)) | figures for group, figures in changes.items()]
    database.put(session, SUMS, sums, adding=True)
    session.execute(delete(SUMS).where(SUMS.c.entries == 0))


def cost_of(run_id: str, step: str, trial: SQLColumnExpression[int]) -> ScalarSelect[float | None]:
    """Return US dollars of all attempts at a trial; null if those of an attempt are unknown."""
    is_known = func.count(USAGE.c.usd) == func.count()
    usd = select(case((is_known, func.sum(USAGE.c.usd)))).where(USAGE.c.trial == trial)
    return usd.filter_by(run_id=run_id, step=step).scalar_subquery()


def _figures(row: UsageRecord) -> dict[str, float]:
    counts = {"entries": 1, "attempts": int(row.kind != IDLE), "unpriced": int(row.usd is None)}
    return counts | {name: getattr(row, name) or 0 for name in FIGURES}


def _group(row: UsageRecord) -> tuple[str, ...]:
    return tuple(getattr(row, name) for name in KEYS)


def _known(session: Session, keys: Iterable[tuple[Any, ...]]) -> Iterator[UsageRecord]:
    """Yield rows with these keys; SQLite finds each by its index, without a scan."""
    columns = [column(name, USAGE.c[name].type) for name in KEY]
    for some in at_most(keys):
        wanted = values(*columns).data(some).cte("wanted")
        same = and_(*(USAGE.c[name] == wanted.c[name] for name in KEY))
        yield from _records(session, select(USAGE).select_from(wanted).join(USAGE, same))


def _records(session: Session, query: Select[Any]) -> Iterator[UsageRecord]:
    for row in session.execute(query).mappings():
        yield UsageRecord.model_construct(**row)


def at_most(values: Iterable[Value], number: int = 200) -> Iterator[tuple[Value, ...]]:
    """Yield values in groups that fit into a query."""
    left = iter(values)
    while some := tuple(islice(left, number)):
        yield some


def _sums(
    by: By | None,
    run_id: str | None,
    since: str,
    only: dict[str, str],
    sites: Collection[str] | None,
) -> Select[Any]:
    """Build the query of sums: for one run from its rows, for all runs from the stored sums."""
    is_stored = run_id is None and "lease_id" not in only
    table = SUMS if is_stored else USAGE
    counts = [table.c[each] for each in COUNTS] if is_stored else _counts(table)
    sums = [
        *(_sum(each, BigInteger()) for each in counts),
        *(_sum(table.c[each], Double()) for each in FIGURES),
    ]
    name: ColumnElement[Any] = literal("")
    if by is not None:
        column = table.c[_COLUMNS.get(by, by)]
        name = func.substr(column, 1, 7) if by == "month" else column
    query = select(name.label("name"), *sums).select_from(table).where(table.c.day >= since)
    query = query.filter_by(**given(run_id=run_id), **only)
    if sites is not None:
        query = query.where(table.c.site_name.in_(sites))
    grouped = query if by is None else query.group_by(name)
    return grouped.order_by(_sum(table.c.usd, Double()).desc(), name)


def _counts(table: FromClause) -> list[ColumnElement[int]]:
    is_attempt = case((table.c.kind == IDLE, 0), else_=1)
    return [literal(1), is_attempt, case((table.c.usd.is_(None), 1), else_=0)]


def _sum(column: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
    """Sum a column; 0 if there are no rows. PostgreSQL would return whole sums as decimals."""
    return cast(func.coalesce(func.sum(column), 0), kind)
