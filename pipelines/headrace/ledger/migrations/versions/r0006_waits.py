"""Whose a lease is, and leases that wait for a place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; of earlier leases nobody told whose they are."""
    owner = sa.Column("owner", sa.Text, nullable=False, server_default="")
    op.add_column("headrace_leases", owner)
    op.create_table(
        "headrace_waits",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), nullable=False),
        sa.Column("site_name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("called_at", sa.Double),
        sa.Column("created_at", sa.Double, nullable=False),
    )
