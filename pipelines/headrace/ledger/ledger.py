"""The ledger: runs, leases and attempts in SQLite or PostgreSQL.

Only the control side writes it, from the files that the cluster's side leaves.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from filelock import Timeout
from sqlalchemy import func, inspect, select, text
from sqlalchemy.orm import Session

from headrace import __version__
from headrace.errors import LedgerError
from headrace.ledger.database import Database, default_url
from headrace.ledger.leases import ACTIVE, LeaseRows
from headrace.ledger.records import (
    REVISION,
    REVISION_TABLE,
    AttemptRecord,
    LeaseRecord,
    Row,
    RunRecord,
)


@dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """How much the ledger holds."""

    url: str
    """Where it is, without the password."""
    revision: str
    """Revision of its schema."""
    num_runs: int
    num_leases: int
    num_active_leases: int
    """Leases that hold, or are about to hold, machines."""
    num_attempts: int


class Ledger(LeaseRows):
    """All rows; made by `Ledger.open`, safe to share between threads and to keep over a fork."""

    @classmethod
    def open(cls, url: str | None = None) -> Ledger:
        """Open the ledger; a missing schema is made and an older one is migrated first.

        Any number of processes may do so at once.

        Args:
            url: `sqlite:////path/ledger.db` or `postgresql://user:password@host/name`; the
                default is `$HEADRACE_LEDGER`, or a file in headrace's home folder.

        Raises:
            LedgerError: It cannot be reached, is on a network file system, or its schema is newer
                than this release.
        """
        database = Database(default_url() if url is None else url)
        try:
            with database.opening():
                _bring_up_to_date(database)
        except (OSError, Timeout) as error:
            raise LedgerError(f"The ledger {database.shown} cannot be opened: {error}") from error
        return cls(database)

    @property
    def url(self) -> str:
        """Where the ledger is, with `***` in place of a password."""
        return self._database.shown

    def summary(self) -> LedgerSummary:
        """How much the ledger holds."""
        with self._database.read() as session:
            return LedgerSummary(
                url=self.url,
                revision=_revision(session) or "",
                num_runs=_count(session, RunRecord),
                num_leases=_count(session, LeaseRecord),
                num_active_leases=_count(session, LeaseRecord, LeaseRecord.state.in_(ACTIVE)),
                num_attempts=_count(session, AttemptRecord),
            )


def open_ledger() -> Ledger:
    """This process's ledger: that of `$HEADRACE_LEDGER`, or a SQLite file in headrace's home."""
    return _opened(default_url(), os.getpid())


@lru_cache(maxsize=4)
def _opened(url: str, _pid: int) -> Ledger:
    return Ledger.open(url)


def _bring_up_to_date(database: Database) -> None:
    with database.read() as session:
        found = _revision(session)
    if found == REVISION:
        return
    from headrace.ledger import migrations  # half a second that only a missing schema is worth

    if found is not None and found not in migrations.revisions():
        raise LedgerError(
            f"The ledger {database.shown} has schema revision {found}, which is newer than "
            f"{REVISION}, the newest that headrace {__version__} knows",
            "Upgrade headrace: pip install --upgrade headrace.",
        )
    with database.write("migration") as session:
        migrations.upgrade(session.connection())


def _revision(session: Session) -> str | None:
    if not inspect(session.connection()).has_table(REVISION_TABLE):
        return None
    query = text(f"SELECT version_num FROM {REVISION_TABLE}")
    revision: str | None = session.scalar(query)
    return revision


def _count(session: Session, kind: type[Row], *where: Any) -> int:
    return session.scalar(select(func.count()).select_from(kind).where(*where)) or 0
