"""Requests of users, as rows that are only ever added."""

from __future__ import annotations

from sqlalchemy import Index, select
from sqlalchemy.orm import Mapped, mapped_column

from headrace.ledger.columns import LedgerRow
from headrace.ledger.database import LedgerPart


class ActRecord(LedgerRow, kw_only=True):
    """A user's request; made at `created_at`."""

    __tablename__ = "headrace_acts"
    __table_args__ = (
        Index("headrace_acts_by_time", "created_at"),
        Index("headrace_acts_by_run", "run_id"),
    )

    act_id: Mapped[int] = mapped_column(primary_key=True, init=False)
    user: Mapped[str]
    """Name of the user; empty if only Airflow's audit log has it."""
    through: Mapped[str]
    """`Airflow`, or the host of the terminal."""
    what: Mapped[str]
    """Kind of request: start, resume, cancel, close, pause, …"""
    run_id: Mapped[str] = mapped_column(default="")
    """Run of the request; if refused, the owning run of the DAG run, or empty."""
    details: Mapped[str] = mapped_column(default="")
    """Overrides, and the step, trials or lease of the request."""
    refused: Mapped[str] = mapped_column(default="")
    """Why it was refused, and what to do; empty if it was done."""


class ActRows(LedgerPart):
    """The part of the ledger with the requests of users."""

    def add_act(self, record: ActRecord) -> None:
        """Enter a request."""
        with self._database.write() as session:
            session.add(record)

    def acts(
        self,
        user: str = "",
        run_id: str = "",
        since: float = 0.0,
        limit: int = 1000,
        *,
        refused: bool = False,
    ) -> tuple[ActRecord, ...]:
        """Return at most `limit` requests since a time, of a user or run; the newest first.

        With `refused`, only refused requests.
        """
        given = {name: value for name, value in {"user": user, "run_id": run_id}.items() if value}
        query = select(ActRecord).filter_by(**given).where(ActRecord.created_at >= since)
        if refused:
            query = query.where(ActRecord.refused != "")
        newest_first = (ActRecord.created_at.desc(), ActRecord.act_id.desc())
        return self._all(query.order_by(*newest_first).limit(limit))
