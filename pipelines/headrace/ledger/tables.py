"""Tables of the ledger, the same on SQLite and PostgreSQL.

Names start with `headrace_`, so that the ledger can share a database with something else.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    Column,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
)

REVISION = "0002"
"""Revision of the schema below; the newest migration gives it."""

REVISION_TABLE = "headrace_schema"
"""Table in which the migrations keep the revision."""


class PlainText(TypeDecorator[str]):
    """Text that every database takes: NUL and lone surrogates are written as escapes."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Escape what a database would refuse."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


class Json(TypeDecorator[Any]):
    """A JSON value as text; unlike JSON columns it holds NaN, as metrics may."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        """Write the value."""
        return json.dumps(value, sort_keys=True)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Read the value."""
        return None if value is None else json.loads(value)


metadata = MetaData()

runs = Table(
    "headrace_runs",
    metadata,
    Column("run_id", PlainText, primary_key=True),
    Column("key", PlainText, nullable=False, unique=True),
    Column("recipe_name", PlainText, nullable=False),
    Column("site_name", PlainText, nullable=False),
    Column("recipe_fingerprint", PlainText, nullable=False),
    Column("folder", PlainText, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("owner", PlainText, nullable=False),
    Column("overrides", Json, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("outputs", Json, nullable=False),
    Index("headrace_runs_by_time", "created_at"),
)

leases = Table(
    "headrace_leases",
    metadata,
    Column("lease_id", PlainText, primary_key=True),
    Column("key", PlainText, nullable=False),
    Column("run_id", PlainText, ForeignKey("headrace_runs.run_id"), nullable=False),
    Column("site_name", PlainText, nullable=False),
    Column("role", PlainText, nullable=False),
    Column("backend", PlainText, nullable=False),
    Column("folder", PlainText, nullable=False),
    Column("state", PlainText, nullable=False),
    Column("job_ids", Json, nullable=False),
    Column("dashboard_url", PlainText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("ready_at", Double),
    Column("ended_at", Double),
    Column("why_ended", PlainText, nullable=False),
    Column("lost_nodes", Json, nullable=False, server_default="[]"),
    Index("headrace_leases_by_key", "key", "created_at"),
    Index("headrace_leases_by_run", "run_id"),
    Index("headrace_leases_by_state", "state", "site_name"),
)

attempts = Table(
    "headrace_attempts",
    metadata,
    Column("run_id", PlainText, ForeignKey("headrace_runs.run_id"), nullable=False),
    Column("step", PlainText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", PlainText, nullable=False),
    Column("key", PlainText, nullable=False, unique=True),
    Column("lease_id", PlainText, ForeignKey("headrace_leases.lease_id"), nullable=False),
    Column("number", Integer),
    Column("state", PlainText, nullable=False),
    Column("failure_class", PlainText),
    Column("message", PlainText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("outputs", Json, nullable=False),
    PrimaryKeyConstraint("run_id", "step", "attempt"),
    Index("headrace_attempts_by_lease", "lease_id"),
)
