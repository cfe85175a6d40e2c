"""Runs, leases and attempts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    _make_runs()
    _make_leases()
    _make_attempts()


def _make_runs() -> None:
    op.create_table(
        "headrace_runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("recipe_name", sa.Text, nullable=False),
        sa.Column("site_name", sa.Text, nullable=False),
        sa.Column("recipe_fingerprint", sa.Text, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("overrides", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
        sa.Column("outputs", sa.Text, nullable=False),
    )
    op.create_index("headrace_runs_by_time", "headrace_runs", ["created_at"])


def _make_leases() -> None:
    op.create_table(
        "headrace_leases",
        sa.Column("lease_id", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), nullable=False),
        sa.Column("site_name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("job_ids", sa.Text, nullable=False),
        sa.Column("dashboard_url", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("ready_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("why_ended", sa.Text, nullable=False),
    )
    op.create_index("headrace_leases_by_key", "headrace_leases", ["key", "created_at"])
    op.create_index("headrace_leases_by_run", "headrace_leases", ["run_id"])
    op.create_index("headrace_leases_by_state", "headrace_leases", ["state", "site_name"])


def _make_attempts() -> None:
    op.create_table(
        "headrace_attempts",
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False, unique=True),
        sa.Column("lease_id", sa.Text, sa.ForeignKey("headrace_leases.lease_id"), nullable=False),
        sa.Column("number", sa.Integer),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("failure_class", sa.Text),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("outputs", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step", "attempt"),
    )
    op.create_index("headrace_attempts_by_lease", "headrace_attempts", ["lease_id"])
