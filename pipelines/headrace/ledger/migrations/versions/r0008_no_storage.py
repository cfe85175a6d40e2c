"""Storage and transfer are not priced any more."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Take the columns of their prices away."""
    for table in ("headrace_usage", "headrace_usage_sums"):
        for column in ("unpriced_bytes", "usd_storage", "usd_transfer"):
            op.drop_column(table, column)
