"""Machines, their times and prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their table; of earlier leases no machine is known."""
    op.create_table(
        "headrace_machines",
        sa.Column("lease_id", sa.Text, sa.ForeignKey("headrace_leases.lease_id"), nullable=False),
        sa.Column("machine_id", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("market", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("booted_at", sa.Double),
        sa.Column("prepared_at", sa.Double),
        sa.Column("joined_at", sa.Double),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double),
        sa.Column("is_estimate", sa.Boolean, nullable=False),
        sa.Column("billed_s", sa.Double, nullable=False),
        sa.Column("usd_per_hour", sa.Double),
        sa.Column("price_source", sa.Text, nullable=False),
        sa.Column("price_as_of", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("lease_id", "machine_id"),
    )
    op.create_index("headrace_machines_by_end", "headrace_machines", ["ended_at"])
