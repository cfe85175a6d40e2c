"""The ledger: runs, leases and attempts in SQLite or PostgreSQL.

Only the control side writes it, from the files that the cluster's side leaves.
"""

from __future__ import annotations

from typing import Any

from filelock import Timeout
from sqlalchemy import Connection, Table, func, inspect, select, text

from headrace import __version__
from headrace.errors import LedgerError
from headrace.ledger import tables
from headrace.ledger.address import default_url, masked
from headrace.ledger.attempts import AttemptRows
from headrace.ledger.engine import Database
from headrace.ledger.leases import ACTIVE, LeaseRows
from headrace.ledger.records import LedgerSummary
from headrace.ledger.runs import RunRows

__all__ = ["Ledger", "default_url", "masked"]


class Ledger(RunRows, LeaseRows, AttemptRows):
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
        active = tables.leases.c.state.in_(ACTIVE)
        with self._database.read() as connection:
            return LedgerSummary(
                url=self.url,
                revision=_revision(connection) or "",
                num_runs=_count(connection, tables.runs),
                num_leases=_count(connection, tables.leases),
                num_active_leases=_count(connection, tables.leases, active),
                num_attempts=_count(connection, tables.attempts),
            )


def _bring_up_to_date(database: Database) -> None:
    with database.read() as connection:
        found = _revision(connection)
    if found == tables.REVISION:
        return
    from headrace.ledger import migrate  # half a second that only a missing schema is worth

    if found is not None and found not in migrate.revisions():
        raise LedgerError(
            f"The ledger {database.shown} has schema revision {found}, which is newer than "
            f"{tables.REVISION}, the newest that headrace {__version__} knows",
            "Upgrade headrace: pip install --upgrade headrace.",
        )
    with database.write() as connection:
        database.backend.hold(connection, "migration")
        migrate.upgrade(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(tables.REVISION_TABLE):
        return None
    query = text(f"SELECT version_num FROM {tables.REVISION_TABLE}")
    revision: str | None = connection.scalar(query)
    return revision


def _count(connection: Connection, table: Table, *where: Any) -> int:
    return connection.scalar(select(func.count()).select_from(table).where(*where)) or 0
