"""Migration of the ledger's schema to that of this release.

Kept apart from the rest because Alembic takes a while to import and is needed only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from operator import not_
from typing import Any

from alembic.autogenerate import produce_migrations
from alembic.operations import Operations, ops
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, DefaultClause, text

from headrace.ledger.columns import LedgerRow
from headrace.ledger.rows import REVISION, REVISION_TABLE

_KEPT = """
UPDATE headrace_leases SET owner = coalesce((SELECT max(owner) FROM headrace_usage
    WHERE headrace_usage.lease_id = headrace_leases.lease_id), '') WHERE owner = '';
DELETE FROM headrace_usage WHERE kind = 'idle';
UPDATE headrace_usage SET until = coalesce(finished_at, started_at, created_at);
UPDATE headrace_usage SET machine_id = node WHERE kind = 'trial' AND EXISTS (
    SELECT 1 FROM headrace_machines WHERE headrace_machines.lease_id = headrace_usage.lease_id
    AND headrace_machines.machine_id = headrace_usage.node)
"""
"""What columns held that revision 0009 drops."""

_ENTERED = """
UPDATE headrace_runs SET "user" = coalesce((SELECT max(owner) FROM headrace_leases
    WHERE headrace_leases.run_id = headrace_runs.run_id), '') WHERE "user" = '';
UPDATE headrace_runs SET kind = coalesce((SELECT max(kind) FROM headrace_attempts WHERE
    headrace_attempts.run_id = headrace_runs.run_id AND kind IN ('suite', 'train')), '')
    WHERE kind = ''
"""
"""What other rows say of runs that were entered before revision 0010."""

_STAMP = f"""
CREATE TABLE IF NOT EXISTS {REVISION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY);
DELETE FROM {REVISION_TABLE};
INSERT INTO {REVISION_TABLE} VALUES ('{REVISION}')
"""


def upgrade(connection: Connection) -> None:
    """Give a ledger of any release the tables of this one, inside the connection's transaction.

    What changes is the difference between its tables and the rows' classes.
    """
    context = MigrationContext.configure(
        connection, opts={"version_table": REVISION_TABLE, "include_name": _is_of_headrace}
    )
    operations = Operations(context)
    changes = list(_single(produce_migrations(context, LedgerRow.metadata).upgrade_ops))
    is_gone = [isinstance(each, ops.DropColumnOp | ops.DropTableOp) for each in changes]
    for each in compress(changes, map(not_, is_gone)):
        operations.invoke(each)
    if any(getattr(each, "column_name", "") == "usd_idle" for each in changes):
        _execute(connection, _KEPT)
    for each in compress(changes, is_gone):
        operations.invoke(each)
    _execute(connection, _ENTERED)
    _execute(connection, _STAMP)


def _execute(connection: Connection, statements: str) -> None:
    for statement in statements.split(";"):
        connection.execute(text(statement))


def _single(operation: Any) -> Iterator[ops.MigrateOperation]:
    """Yield the operations that this one contains."""
    if isinstance(operation, ops.OpContainer):
        for each in operation.ops:
            yield from _single(each)
        return
    if isinstance(operation, ops.AddColumnOp):
        column = operation.column
        if not column.nullable and column.server_default is None:
            column.server_default = DefaultClause("0")  # the rows that are there need a value
    yield operation


def _is_of_headrace(name: str | None, kind: str, _parents: Any) -> bool:
    """Whether a table is of the ledger: others may lie in the same database."""
    return kind != "table" or (name or "").startswith("headrace_")
