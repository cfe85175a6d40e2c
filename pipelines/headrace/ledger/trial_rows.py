"""Rows of trials, and how far the event logs of suites have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Table,
    Text,
    and_,
    delete,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column, query_expression, with_expression

from headrace.errors import UnknownNameError, nearest
from headrace.ledger.columns import Json, LedgerRow
from headrace.ledger.database import LedgerPart, given
from headrace.ledger.rows import RunRecord
from headrace.ledger.usage_records import USAGE, UsageRecord
from headrace.ledger.usage_rows import USD_OF_TRIAL, WH_OF_TRIAL, at_most
from headrace.states import FailureClass, StepState


class TrialRecord(LedgerRow, kw_only=True):
    """One trial of a suite; `created_at` is when the suite added it."""

    __tablename__ = "headrace_trials"
    __table_args__ = (
        Index("headrace_trials_by_state", "run_id", "state"),
        Index("headrace_trials_by_objective", "run_id", "objective"),
    )

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRecord.run_id), primary_key=True)
    """The suite's run."""
    number: Mapped[int] = mapped_column(primary_key=True)
    """Number in the suite, from 1."""
    name: Mapped[str]
    values: Mapped[dict[str, Any]] = mapped_column(Json(dict[str, Any]), default_factory=dict)
    """Differences from the suite's recipe, by dotted key."""
    group: Mapped[int] = mapped_column(default=0)
    """Number of the first trial of the same point."""
    proposal: Mapped[int | None] = mapped_column(default=None)
    """Number of the sampler's proposal of its values; null if there is none."""
    state: Mapped[StepState] = mapped_column(default=StepState.QUEUED)
    pruned: Mapped[bool] = mapped_column(default=False)
    """Whether it was ended early because its results were poor."""
    attempts: Mapped[int] = mapped_column(default=0)
    """Attempts that have begun."""
    node: Mapped[str] = mapped_column(default="")
    """Node of its newest attempt."""
    site: Mapped[str] = mapped_column(default="", server_default="")
    """Site of its newest attempt, or that it waits for; empty: that of the run."""
    environment: Mapped[str] = mapped_column(default="", server_default="")
    """Hardware and software of its last attempt, for comparisons; empty if unknown."""
    weights: Mapped[str] = mapped_column(default="", server_default="")
    """XXH3 hash of its trained weights; empty if there is none."""
    started_at: Mapped[float | None] = mapped_column(default=None)
    """When its first attempt began."""
    finished_at: Mapped[float | None] = mapped_column(default=None)
    """When it ended, or its suite without it; null while it waits or runs."""
    objective: Mapped[float | None] = mapped_column(default=None)
    """Value of the suite's first objective; null if there is none, or it is not a number."""
    objectives: Mapped[tuple[float, ...]] = mapped_column(Json(tuple[float, ...]), default=())
    """Values of the suite's objectives."""
    metrics: Mapped[dict[str, float]] = mapped_column(Json(dict[str, float]), default_factory=dict)
    """Last results of training and evaluation, by name."""
    failure_class: Mapped[FailureClass | None] = mapped_column(default=None)
    message: Mapped[str] = mapped_column(default="")
    """Why its newest attempt failed."""
    usd: Mapped[float | None] = query_expression(compare=False)
    """US dollars of all its attempts, summed by `trials`; null if a price is unknown (not 0)."""
    energy_wh: Mapped[float | None] = query_expression(compare=False)
    """Watt-hours of its attempts, summed by `trials`; null if that of one was not measured."""


_PRICED = select(TrialRecord).options(
    with_expression(TrialRecord.usd, USD_OF_TRIAL),
    with_expression(TrialRecord.energy_wh, WH_OF_TRIAL),
)

JOURNALS = Table(
    "headrace_journals",
    LedgerRow.metadata,
    Column("run_id", Text, ForeignKey(RunRecord.run_id), primary_key=True),
    Column("read_bytes", BigInteger, nullable=False),
)
"""Bytes of a suite's event log that are included in the rows of its trials."""


class JournalPart(NamedTuple):
    """A part of a suite's event log, bytes."""

    run_id: str
    """The suite's run."""
    begin: int
    end: int


TRIAL_ORDERS = ("number", "name", "objective", "started_at", "finished_at", "usd", "attempts")
"""Orders of trials."""


class TrialRows(LedgerPart):
    """The part of the ledger with the trials of suites."""

    def put_trials(
        self,
        rows: Iterable[TrialRecord],
        usage: Iterable[UsageRecord] = (),
        part: JournalPart | None = None,
        withdrawn: Iterable[int] = (),
    ) -> bool:
        """Enter or replace trials and the usage of their attempts, in one transaction.

        Args:
            rows: The trials.
            usage: Usage of attempts; a trial costs what all its attempts do.
            part: Part of the suite's event log that they come from; if another process has read it
                meanwhile, nothing is changed.
            withdrawn: Trials that have left this part of their suite: their rows are deleted.

        Returns:
            Whether the rows were entered.

        Raises:
            LedgerError: Their run is not in the ledger.
        """
        columns = TrialRecord.__table__.c.keys()
        values = [{name: getattr(row, name) for name in columns} for row in rows]
        with self._database.write("trials") as session:
            if part is not None:
                read = select(JOURNALS.c.read_bytes).filter_by(run_id=part.run_id)
                if (session.scalar(read) or 0) != part.begin:
                    return False
                mark = {"run_id": part.run_id, "read_bytes": part.end}
                self._database.put(session, JOURNALS, [mark])
                gone = delete(TrialRecord).filter_by(run_id=part.run_id)
                for some in at_most(withdrawn):
                    session.execute(gone.where(TrialRecord.number.in_(some)))
            self._database.put(session, TrialRecord.__table__, values)
            self._database.put(session, USAGE, [dict(row) for row in usage])
        return True

    def stop_trials(self, run_id: str) -> None:
        """If a suite has ended, let trials that have begun but not ended wait, since its end."""
        end = select(RunRecord.finished_at).filter_by(run_id=run_id).scalar_subquery()
        begun = and_(TrialRecord.run_id == run_id, TrialRecord.started_at.is_not(None))
        left = and_(begun, TrialRecord.finished_at.is_(None), end.is_not(None))
        with self._database.read() as session:
            if session.scalar(select(TrialRecord.number).where(left).limit(1)) is None:
                return
        stopped = {"state": StepState.QUEUED, "finished_at": end}
        with self._database.write("trials") as session:
            session.execute(update(TrialRecord).where(left).values(stopped))

    def journal_read(self, run_id: str) -> int:
        """Return how many bytes of a suite's event log have been entered."""
        with self._database.read() as session:
            return session.scalar(select(JOURNALS.c.read_bytes).filter_by(run_id=run_id)) or 0

    def trials(
        self,
        run_id: str,
        state: StepState | None = None,
        order: str = "number",
        limit: int = 1000,
    ) -> tuple[TrialRecord, ...]:
        """Return trials of a suite.

        Args:
            run_id: The suite's run.
            state: State of the trials; None for all.
            order: One of `TRIAL_ORDERS`; with `-` in front, the greatest value first. Trials
                without a value come last.
            limit: Most trials.
        """
        name = order.removeprefix("-")
        if name not in TRIAL_ORDERS:
            raise UnknownNameError(f"Trials have no order '{order}'", nearest(name, TRIAL_ORDERS))
        query = _PRICED.filter_by(**given(run_id=run_id, state=state))
        by = USD_OF_TRIAL if name == "usd" else getattr(TrialRecord, name)
        first = (by if name == order else by.desc()).nulls_last()
        return self._all(query.order_by(first, TrialRecord.number).limit(limit))

    def best_trial(self, run_id: str, *modes: str) -> TrialRecord | None:
        """Return the best trial that succeeded with a value; None unless there is one objective."""
        rows = _PRICED.filter_by(run_id=run_id, state=StepState.SUCCEEDED, pruned=False)
        value = TrialRecord.objective
        order = (value if modes == ("min",) else value.desc(), TrialRecord.number)
        best = rows.where(value.is_not(None)).order_by(*order).limit(1)
        return self._first(best) if len(modes) == 1 else None

    def trials_numbered(self, run_id: str, numbers: Iterable[int]) -> dict[int, TrialRecord]:
        """Return trials of a suite by their numbers; unknown numbers are absent."""
        known = select(TrialRecord).filter_by(run_id=run_id)
        with self._database.read() as session:
            found = (
                row
                for some in at_most(sorted(numbers))
                for row in session.scalars(known.where(TrialRecord.number.in_(some)))
            )
            return {row.number: row for row in found}

    def metrics_of_trials(self, numbers: Mapping[str, int]) -> dict[str, dict[str, float]]:
        """Return the metrics of one trial of each suite, by suite; unknown trials are absent."""
        key = tuple_(TrialRecord.run_id, TrialRecord.number)
        query = select(TrialRecord.run_id, TrialRecord.metrics).where(key.in_(numbers.items()))
        with self._database.read() as session:
            return {row.run_id: row.metrics for row in session.execute(query)}

    def trial(self, run_id: str, number: int) -> TrialRecord:
        """Return the trial with this number; raise `UnknownNameError` if it does not exist."""
        found = self._first(_PRICED.filter_by(run_id=run_id, number=number))
        if found is None:
            raise UnknownNameError(
                f"Suite {run_id} has no trial {number}",
                f"List its trials: headrace suite show {run_id}.",
            )
        return found
