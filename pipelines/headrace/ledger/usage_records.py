"""Rows of usage: time and machines of each attempt, and the sums that queries make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Integer, Table

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.columns import LedgerRow
from headrace.ledger.rows import LeaseRecord, RunRecord

IDLE = "idle"
"""Kind and cause of the time of a lease's machines that no attempt used."""


class UsageRecord(AttemptUsage):
    """What one attempt at a step or a trial used; its price is its machines'. Null is unknown."""

    run_id: str
    step: str
    """Name of the step."""
    trial: int = 0
    """Number of the trial in the suite; 0 if there is none."""
    attempt: int = 1
    kind: str
    """Kind of the step, or `trial`."""
    lease_id: str
    machine_id: str = ""
    """Its machine; empty for all machines of the lease, at their mean price."""
    cause: str
    """Why it ended: a failure class, else its state."""
    created_at: float
    """When it was requested."""
    started_at: float | None = None
    until: float
    """When it ended, or was last observed."""
    node_s: float = 0.0
    """Seconds of machines that it used; for a part of a node, that part of the seconds."""
    queue_s: float | None = None
    """Seconds of waiting for its machines in the queue; they cost nothing."""
    boot_s: float | None = None
    """Seconds of waiting for its machines to boot and join; idle time of the lease."""


KEY = ("run_id", "step", "trial", "attempt")

_TYPES: Mapping[Any, Any] = {**LedgerRow.type_annotation_map, int: Integer}


def _column(name: str, annotation: Any) -> Column[Any]:
    """Return the column of a field; a count that may be null is large."""
    kind, *null = get_args(annotation) or (annotation,)
    stored = BigInteger if null and kind is int else _TYPES[kind]
    default = "" if name == "machine_id" else None
    primary = name in KEY
    return Column(name, stored, primary_key=primary, nullable=bool(null), server_default=default)


_FIELDS = sorted(UsageRecord.model_fields, key=AttemptUsage.model_fields.__contains__)
"""Its own fields, then those that attempts report."""

USAGE = Table(
    "headrace_usage",
    LedgerRow.metadata,
    *(_column(name, UsageRecord.model_fields[name].annotation) for name in _FIELDS),
    ForeignKeyConstraint(["run_id"], [RunRecord.run_id]),
    ForeignKeyConstraint(["lease_id"], [LeaseRecord.lease_id]),
    Index("headrace_usage_by_lease", "lease_id"),
)
"""The rows of `UsageRecord`."""


class UsageSum(NamedTuple):
    """Sums of attempts and of idle machines."""

    name: str
    """Common value: a user, a site, a month, …"""
    attempts: int
    """Attempts at steps and trials."""
    unpriced: int
    """Attempts and machines without a known price: their time is counted, but no money."""
    usd: float | None
    """US dollars of machines; null: no price is known."""
    node_s: float
    gpu_s: float
    queue_s: float
    staging_s: float
    """Machine seconds of staging."""
    idle_s: float
    """Machine seconds without an attempt, or in which an attempt did nothing known."""
    failed_s: float
    """Machine seconds of attempts that did not succeed, each as a whole."""
    measured_s: float
    """Machine seconds of attempts whose energy was measured."""
    energy_wh: float | None
    """Their watt-hours; null: none was measured."""
    train_s: float
    """Seconds of training, with waiting for data."""
    samples: float
    stored_bytes: float
    fetched_bytes: float
    usd_storage: float | None
    """US dollars for a month of the stored bytes; null: no price is known."""
    usd_transfer: float | None
    """US dollars of the fetched bytes; null: no price is known."""


FIGURES = UsageSum._fields[4:-2]
"""Sums that need no price."""
