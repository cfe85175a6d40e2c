"""The newest runs, from the ledger as it is: it is not made or migrated."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import make_url, select

from headrace.ledger.database import Database, default_url
from headrace.ledger.rows import RunRecord


def newest_runs(limit: int) -> dict[str, str]:
    """Return folders of the newest runs by id, the newest first; empty without a ledger.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    database, url = Database(default_url()), make_url(default_url())
    is_file = url.get_backend_name() == "sqlite"
    if is_file and not Path(url.database or "").expanduser().exists():
        return {}
    query = select(RunRecord.run_id, RunRecord.folder).order_by(RunRecord.created_at.desc())
    with database.read() as session:
        return {row.run_id: row.folder for row in session.execute(query.limit(limit))}
