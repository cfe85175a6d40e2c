"""Usage has the price of its machines; sums and money of attempts are not stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from headrace.ledger.migrations import keep_rows

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_GONE = (
    *("suite", "owner", "site_name", "recipe_name", "role", "state", "node_kind", "finished_at"),
    *("day", "gpu_s", "idle_s", "failed_s", "usd_per_hour", "price_source", "price_as_of"),
    *("usd", "usd_staging", "usd_idle", "usd_failed"),
)


def upgrade() -> None:
    """Keep users with their leases, machines with their trials, and drop what is computed."""
    op.add_column(
        "headrace_usage", sa.Column("machine_id", sa.Text, nullable=False, server_default="")
    )
    until = sa.Column("until", sa.Double, nullable=False, server_default="0")
    op.add_column("headrace_usage", until)
    op.add_column("headrace_usage", sa.Column("cpu_energy_wh", sa.Double))
    keep_rows(op.get_bind())
    for column in _GONE:
        op.drop_column("headrace_usage", column)
    op.drop_column("headrace_trials", "usd")
    op.drop_table("headrace_usage_sums")
