"""Trials of suites; what attempts used, and its sums."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SUMMED_BY = (
    "day", "suite", "owner", "site_name", "recipe_name", "role", "kind", "cause",
)  # fmt: skip
_SUMMED = (
    "usd", "usd_staging", "usd_idle", "usd_failed", "node_s", "gpu_s", "queue_s", "boot_s",
    "start_s", "staging_s", "data_wait_s", "train_s", "evaluate_s", "idle_s", "failed_s",
    "samples", "energy_wh",
)  # fmt: skip


def upgrade() -> None:
    """Add their tables; of earlier attempts only what the ledger said of them is known."""
    _make_trials()
    _make_usage()
    op.create_table(
        "headrace_usage_sums",
        *(sa.Column(name, sa.Text, primary_key=True) for name in _SUMMED_BY),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("entries", "attempts", "unpriced")
        ),
        *(sa.Column(name, sa.Double, nullable=False) for name in _SUMMED),
    )


def _make_trials() -> None:
    op.create_table(
        "headrace_trials",
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("values", sa.Text, nullable=False),
        sa.Column("group", sa.Integer, nullable=False),
        sa.Column("proposal", sa.Integer),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("pruned", sa.Boolean, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("finished_at", sa.Double),
        sa.Column("objective", sa.Double),
        sa.Column("objectives", sa.Text, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("failure_class", sa.Text),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("usd", sa.Double),
        sa.PrimaryKeyConstraint("run_id", "number"),
    )
    op.create_index("headrace_trials_by_state", "headrace_trials", ["run_id", "state"])
    op.create_index("headrace_trials_by_objective", "headrace_trials", ["run_id", "objective"])
    op.create_table(
        "headrace_journals",
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), primary_key=True),
        sa.Column("read_bytes", sa.BigInteger, nullable=False),
    )


def _make_usage() -> None:
    texts = ("kind", "suite", "owner", "site_name", "recipe_name", "role", "state", "cause",
             "node", "node_kind", "day", "price_source", "price_as_of")  # fmt: skip
    known = ("created_at", "gpus", "cpus", "node_s", "gpu_s")
    told = ("started_at", "finished_at", "queue_s", "boot_s", "start_s", "staging_s",
            "data_wait_s", "train_s", "evaluate_s", "idle_s", "failed_s", "cpu_use", "gpu_use",
            "energy_wh", "usd_per_hour", "usd", "usd_staging", "usd_idle",
            "usd_failed")  # fmt: skip
    counts = ("samples", "memory_bytes", "gpu_memory_bytes")
    op.create_table(
        "headrace_usage",
        sa.Column("run_id", sa.Text, sa.ForeignKey("headrace_runs.run_id"), nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("trial", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("lease_id", sa.Text, sa.ForeignKey("headrace_leases.lease_id"), nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in texts),
        *(sa.Column(name, sa.Double, nullable=False) for name in known),
        *(sa.Column(name, sa.Double) for name in told),
        *(sa.Column(name, sa.BigInteger) for name in counts),
        sa.PrimaryKeyConstraint("run_id", "step", "trial", "attempt"),
    )
    op.create_index("headrace_usage_by_lease", "headrace_usage", ["lease_id"])
