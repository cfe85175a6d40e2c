"""Runs by their overrides and metrics, and their tags, notes and stars."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Select,
    Table,
    Text,
    and_,
    delete,
    exists,
    or_,
    select,
    type_coerce,
    update,
)

from headrace.errors import UnknownNameError, UserError, nearest
from headrace.ledger.columns import LedgerRow, Number, PlainText
from headrace.ledger.database import LedgerPart, grouped
from headrace.ledger.rows import RunRecord
from headrace.ledger.run_filter import ALL, Condition, Marks, RunFilter, number_of

_MOST_TAGS = 50
_NO_RUNS = ("pack", "rehearsal")
"""Kinds that are listed only by their names."""

FACTS = Table(
    "headrace_facts",
    LedgerRow.metadata,
    Column("run_id", Text, ForeignKey(RunRecord.run_id), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("name", PlainText, primary_key=True),
    Column("short", PlainText, nullable=False),
    Column("text", PlainText, nullable=False),
    Column("number", Number),
    Index("headrace_facts_by_name", "name"),
)
"""Overrides and metrics of runs (`kind`); `short` is the part of an override's key behind the last
dot, `number` is null for a text that is not a number, and for NaN."""

_SIGNS = {
    "=": operator.eq, "!=": ColumnElement.is_distinct_from, "<": operator.lt,
    ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
_OF_RUN = FACTS.c.run_id == RunRecord.run_id


class Fact(NamedTuple):
    """An override or a metric of a run."""

    kind: str
    """`override` or `metric`."""
    name: str
    text: str


class RunFacts(LedgerPart):
    """The part of the ledger that finds and marks runs."""

    def find_runs(
        self,
        wanted: RunFilter,
        sites: Collection[str] | None = None,
        mode: str = "max",
    ) -> tuple[RunRecord, ...]:
        """Return the runs that a filter lets through, as far as they are indexed.

        Args:
            wanted: The filter.
            sites: Sites that are included; None for all.
            mode: Whether the least (`min`) or greatest (`max`) metric is first.

        Raises:
            UnknownNameError: No run has a name of the filter, so that none is found, or the metric.
        """
        query, metric = select(RunRecord).where(*_conditions(wanted, sites)), wanted.order[0]
        if metric:
            query = query.outerjoin(FACTS, _is_metric(metric))
            value = FACTS.c.number
            query = query.order_by((value if mode == "min" else value.desc()).nulls_last())
        newest_first = (RunRecord.created_at.desc(), RunRecord.run_id.desc())
        found = self._all(query.order_by(*newest_first).limit(wanted.limit))
        if metric:
            self._check("metric", [metric], self._facts(sites, "metric"))
        if not found:
            for name in ("kind", "user", "recipe"):
                column = RunRecord.recipe_name if name == "recipe" else getattr(RunRecord, name)
                self._check(name, getattr(wanted, name), select(column).where(*_of(sites)))
            keys = (each.key for each in wanted.conditions)
            self._check("override or metric", keys, self._facts(sites))
        return found

    def newest_with(self, metric: str) -> RunRecord | None:
        """Return the newest run with a metric; None if there is none."""
        query = select(RunRecord).join(FACTS, _is_metric(metric))
        return self._first(query.order_by(RunRecord.created_at.desc()).limit(1))

    def metrics_of(self, run_ids: Collection[str]) -> Mapping[str, Mapping[str, float]]:
        """Return all metrics by run and name."""
        query = select(FACTS).where(FACTS.c.kind == "metric", FACTS.c.run_id.in_(run_ids))
        with self._database.read() as session:
            rows = session.execute(query.order_by(FACTS.c.name))
            found = grouped((row.run_id, (row.name, float(row.text))) for row in rows)
        return {run_id: dict(metrics) for run_id, metrics in found.items()}

    def not_indexed(self, limit: int) -> tuple[RunRecord, ...]:
        """Return at most `limit` runs whose facts are not those of their rows, the newest first."""
        query = select(RunRecord).where(RunRecord.is_indexed.is_(False))
        return self._all(query.order_by(RunRecord.created_at.desc()).limit(limit))

    def put_facts(self, found: Iterable[tuple[RunRecord, Iterable[Fact]]]) -> None:
        """Replace the facts of runs, and the kind, user, dataset and seed of their rows.

        A run that has changed since its record was read keeps those that it has.
        """
        with self._database.write("facts") as session:
            for record, facts in found:
                read = {name: getattr(record, name) for name in ("run_id", "state", "overrides")}
                names = ("kind", "user", "dataset", "seed")
                values = {name: getattr(record, name) for name in names}
                change = update(RunRecord).filter_by(**read).values(**values, is_indexed=True)
                if session.execute(change).rowcount:  # type: ignore[attr-defined]
                    session.execute(delete(FACTS).where(FACTS.c.run_id == record.run_id))
                    rows = {each[:2]: _row(record.run_id, each) for each in facts}
                    self._database.put(session, FACTS, [*rows.values()])

    def mark_runs(self, run_ids: Collection[str], marks: Marks) -> None:
        """Change tags, note and star of runs, in one transaction.

        Raises:
            UserError: A run would have more than fifty tags.
            UnknownNameError: A run does not exist, or lacks a tag to remove.
        """
        with self._database.write("marks") as session:
            for run_id in run_ids:
                record = session.get(RunRecord, run_id)
                if record is None:
                    hint = "List runs: headrace runs."
                    raise UnknownNameError(f"There is no run '{run_id}' in the ledger", hint)
                _mark(record, marks)

    def _facts(self, sites: Collection[str] | None, *kinds: str) -> Select[Any]:
        query = select(FACTS.c.name).join(RunRecord, _OF_RUN)
        return query.where(*_of(sites), *([FACTS.c.kind.in_(kinds)] if kinds else ()))

    def _check(self, what: str, names: Iterable[str], known: Select[Any]) -> None:
        """Raise if no run has a name."""
        given = [name for name in names if (what, name) != ("kind", ALL)]
        if not given:
            return
        with self._database.read() as session:
            valid = {name for name in session.scalars(known.distinct()) if name}
        shorts = {name.rpartition(".")[2] for name in valid} if what != "metric" else set()
        for name in given:
            if name not in valid | shorts:
                raise UnknownNameError(f"No run has the {what} '{name}'", nearest(name, valid))


def _mark(record: RunRecord, marks: Marks) -> None:
    for tag in marks.untag:
        if tag not in record.tags:
            what = f"Run {record.run_id} has no tag '{tag}'"
            raise UnknownNameError(what, nearest(tag, record.tags))
    kept = (tag for tag in record.tags if tag not in marks.untag)
    record.tags = tuple(dict.fromkeys((*kept, *marks.tag)))
    if len(record.tags) > _MOST_TAGS:
        what = f"Run {record.run_id} would have {len(record.tags)} tags, more than {_MOST_TAGS}"
        raise UserError(what, "Remove some with --untag.")
    record.note = record.note if marks.note is None else marks.note
    record.is_starred = record.is_starred if marks.star is None else marks.star


def _row(run_id: str, fact: Fact) -> dict[str, Any]:
    is_key = fact.kind == "override"
    short = fact.name.rpartition(".")[2] if is_key else fact.name
    return {"run_id": run_id, "short": short, **fact._asdict(), "number": number_of(fact.text)}


def _is_metric(name: str) -> ColumnElement[bool]:
    return and_(_OF_RUN, FACTS.c.kind == "metric", FACTS.c.name == name)


def _of(sites: Collection[str] | None) -> Iterator[ColumnElement[bool]]:
    if sites is not None:
        yield RunRecord.site_name.in_(sites)


def _conditions(wanted: RunFilter, sites: Collection[str] | None) -> Iterator[ColumnElement[bool]]:
    yield from _of(sites)
    if not wanted.kind:
        yield RunRecord.kind.not_in(_NO_RUNS)
    elif ALL not in wanted.kind:
        yield RunRecord.kind.in_(wanted.kind)
    for column, values in (
        (RunRecord.state, wanted.state),
        (RunRecord.user, wanted.user),
        (RunRecord.recipe_name, wanted.recipe),
    ):
        if values:
            yield column.in_(values)
    begin, end = wanted.span
    yield from (RunRecord.created_at >= begin, RunRecord.created_at < end)
    if wanted.starred:
        yield RunRecord.is_starred
    tags = type_coerce(RunRecord.tags, Text)
    for tag in wanted.tag:
        yield tags.icontains(f'"{tag}"', autoescape=True)
    if wanted.text:
        columns = (
            *(RunRecord.run_id, RunRecord.recipe_name, RunRecord.site_name, RunRecord.user),
            *(RunRecord.dataset, RunRecord.note, tags),
        )
        override = (FACTS.c.name + "=" + FACTS.c.text).icontains(wanted.text, autoescape=True)
        yield or_(
            *(each.icontains(wanted.text, autoescape=True) for each in columns),
            exists().where(_OF_RUN, FACTS.c.kind == "override", override),
        )
    yield from map(_has, wanted.conditions)


def _has(condition: Condition) -> ColumnElement[bool]:
    """Return whether a run has an override or metric that meets a condition."""
    is_text = condition.number is None
    column, value = (
        (FACTS.c.text, condition.text) if is_text else (FACTS.c.number, condition.number)
    )
    is_named = or_(FACTS.c.name == condition.key, FACTS.c.short == condition.key)
    return exists().where(_OF_RUN, is_named, _SIGNS[condition.sign](column, value))
