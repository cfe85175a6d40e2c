"""What people asked for, as rows that are only ever added."""

from __future__ import annotations

from sqlalchemy import Index, select
from sqlalchemy.orm import Mapped, mapped_column

from headrace.ledger.columns import LedgerRow
from headrace.ledger.database import LedgerPart


class ActRecord(LedgerRow, kw_only=True):
    """Somebody asked for something; `created_at` says when."""

    __tablename__ = "headrace_acts"
    __table_args__ = (
        Index("headrace_acts_by_time", "created_at"),
        Index("headrace_acts_by_run", "run_id"),
    )

    act_id: Mapped[int] = mapped_column(primary_key=True, init=False)
    user: Mapped[str]
    """Who; empty where only Airflow's audit log tells."""
    through: Mapped[str]
    """`Airflow`, or the host of the terminal."""
    what: Mapped[str]
    """In one word: start, resume, cancel, close, pause, …"""
    run_id: Mapped[str] = mapped_column(default="")
    """The run that it was about; where that was refused the owner of such a DAG run, or empty."""
    details: Mapped[str] = mapped_column(default="")
    """What was overridden, which step, trials or lease was meant."""
    refused: Mapped[str] = mapped_column(default="")
    """Why it was not done, and what to do; empty when it was."""


class ActRows(LedgerPart):
    """The part of the ledger that holds who asked for what."""

    def add_act(self, record: ActRecord) -> None:
        """Enter an act."""
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
        """At most `limit` acts, of a user or about a run only, since a time; the newest first.

        `refused` leaves out what was done.
        """
        given = {name: value for name, value in {"user": user, "run_id": run_id}.items() if value}
        query = select(ActRecord).filter_by(**given).where(ActRecord.created_at >= since)
        if refused:
            query = query.where(ActRecord.refused != "")
        newest_first = (ActRecord.created_at.desc(), ActRecord.act_id.desc())
        with self._database.read() as session:
            return tuple(session.scalars(query.order_by(*newest_first).limit(limit)))
