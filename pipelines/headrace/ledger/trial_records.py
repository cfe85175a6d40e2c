"""Rows of trials, and how far the journals of suites have been read."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text
from sqlalchemy.orm import Mapped, mapped_column

from headrace.ledger.columns import Json, Row
from headrace.ledger.records import RunRecord
from headrace.states import FailureClass, StepState


class TrialRecord(Row, kw_only=True):
    """One trial of a suite; `created_at` is when the suite took it in."""

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
    """What is different from the suite's recipe, by dotted key."""
    group: Mapped[int] = mapped_column(default=0)
    """Number of the first trial of the same point."""
    proposal: Mapped[int | None] = mapped_column(default=None)
    """Number of the sampler's proposal that it comes from; null: none."""
    state: Mapped[StepState] = mapped_column(default=StepState.QUEUED)
    pruned: Mapped[bool] = mapped_column(default=False)
    """Whether it was ended since it promised little."""
    attempts: Mapped[int] = mapped_column(default=0)
    """Attempts that have begun."""
    node: Mapped[str] = mapped_column(default="")
    """Node of its newest attempt."""
    started_at: Mapped[float | None] = mapped_column(default=None)
    """When its first attempt began."""
    finished_at: Mapped[float | None] = mapped_column(default=None)
    """When it ended; null while it waits or runs."""
    objective: Mapped[float | None] = mapped_column(default=None)
    """Value of the suite's first objective; null when there is none, or it is no number."""
    objectives: Mapped[tuple[float, ...]] = mapped_column(Json(tuple[float, ...]), default=())
    """Values of the suite's objectives."""
    metrics: Mapped[dict[str, float]] = mapped_column(Json(dict[str, float]), default_factory=dict)
    """What training and evaluation gave last, by name."""
    failure_class: Mapped[FailureClass | None] = mapped_column(default=None)
    message: Mapped[str] = mapped_column(default="")
    """Why its newest attempt failed."""
    usd: Mapped[float | None] = mapped_column(default=None)
    """US dollars of all its attempts; null where a price is not known, which is not 0."""


JOURNALS = Table(
    "headrace_journals",
    Row.metadata,
    Column("run_id", Text, ForeignKey(RunRecord.run_id), primary_key=True),
    Column("read_bytes", BigInteger, nullable=False),
)
"""How many bytes of a suite's journal the rows of its trials tell of."""


class JournalPart(NamedTuple):
    """A part of a suite's journal, bytes."""

    run_id: str
    """The suite's run."""
    begin: int
    end: int
