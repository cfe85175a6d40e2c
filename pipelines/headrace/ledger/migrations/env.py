"""Run by Alembic: migrates on the connection that `headrace.ledger.migrate` hands over."""

from __future__ import annotations

from alembic import context

from headrace.ledger.tables import REVISION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=REVISION_TABLE,
)
context.run_migrations()
