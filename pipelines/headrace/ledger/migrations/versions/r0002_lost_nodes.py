"""Nodes that a pool lost, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them to the leases; those that are there already lost none, as far as is known."""
    column = sa.Column("lost_nodes", sa.Text, nullable=False, server_default="[]")
    op.add_column("headrace_leases", column)
