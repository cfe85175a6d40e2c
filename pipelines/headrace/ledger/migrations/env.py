"""Run by Alembic: migrates on the connection that `headrace.ledger.migrations` hands over."""

from __future__ import annotations

from alembic import context

from headrace.ledger.columns import LedgerRow
from headrace.ledger.rows import REVISION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=LedgerRow.metadata,
    version_table=REVISION_TABLE,
)
context.run_migrations()
