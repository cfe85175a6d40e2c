"""Who asked for what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TEXTS = ("user", "through", "what", "run_id", "details", "refused")


def upgrade() -> None:
    """Add their table; of what was asked before, only the folders of runs tell."""
    op.create_table(
        "headrace_acts",
        sa.Column("act_id", sa.Integer, primary_key=True),
        sa.Column("created_at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in _TEXTS),
    )
    op.create_index("headrace_acts_by_time", "headrace_acts", ["created_at"])
    op.create_index("headrace_acts_by_run", "headrace_acts", ["run_id"])
