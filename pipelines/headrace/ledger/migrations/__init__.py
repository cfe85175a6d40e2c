"""Migrations of the ledger: bring its schema to the revision that this release uses.

Kept apart from the rest because Alembic takes a while to import and is needed only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import produce_migrations
from alembic.config import Config
from alembic.operations import Operations, ops
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, DefaultClause, text

from headrace.ledger.columns import LedgerRow
from headrace.ledger.rows import REVISION_TABLE

_FOLDER = Path(__file__).parent

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


def upgrade(connection: Connection) -> None:
    """Bring a ledger to this release's revision, inside the connection's transaction.

    From a revision that has a file in `versions` on, the files' migrations are run. A new ledger,
    and one of before these files, gets what its tables lack of the rows' classes.
    """
    config = _config()
    config.attributes["connection"] = connection
    context = MigrationContext.configure(
        connection, opts={"version_table": REVISION_TABLE, "include_name": _is_of_headrace}
    )
    if context.get_current_revision() in revisions():
        command.upgrade(config, "head")
        return
    operations = Operations(context)
    changes = list(_single(produce_migrations(context, LedgerRow.metadata).upgrade_ops))
    is_gone = [isinstance(each, ops.DropColumnOp | ops.DropTableOp) for each in changes]
    for each in compress(changes, map(not_, is_gone)):
        operations.invoke(each)
    if any(getattr(each, "column_name", "") == "usd_idle" for each in changes):
        keep_rows(connection)
    for each in compress(changes, is_gone):
        operations.invoke(each)
    command.stamp(config, "head", purge=True)


def keep_rows(connection: Connection) -> None:
    """Copy what is still needed from columns that revision 0009 drops."""
    for statement in _KEPT.split(";"):
        connection.execute(text(statement))


def revisions() -> tuple[str, ...]:
    """Return the revisions that this release can migrate from, newest first."""
    script = ScriptDirectory.from_config(_config())
    return tuple(revision.revision for revision in script.walk_revisions())


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


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
