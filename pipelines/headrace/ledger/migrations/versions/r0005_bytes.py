"""Bytes that attempts stored and fetched, and what these cost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_BYTES = ("stored_bytes", "fetched_bytes")
_USD = ("usd_storage", "usd_transfer")


def upgrade() -> None:
    """Add them; of earlier attempts nobody told."""
    for name in _BYTES:
        op.add_column("headrace_usage", sa.Column(name, sa.BigInteger))
    for name in _USD:
        op.add_column("headrace_usage", sa.Column(name, sa.Double))
    unpriced = sa.Column("unpriced_bytes", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("headrace_usage", unpriced)
    for name in (*_BYTES, *_USD, "unpriced_bytes"):
        column = sa.Column(name, sa.Double, nullable=False, server_default="0")
        op.add_column("headrace_usage_sums", column)
