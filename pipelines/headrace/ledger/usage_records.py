"""Rows of usage: time, machines and money of each attempt, and their sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Index, Integer, Table, Text

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.columns import LedgerRow, Number
from headrace.ledger.rows import LeaseRecord, RunRecord
from headrace.states import StepState

IDLE = "idle"
"""Kind and cause of a row with the time of a lease's machines that no attempt used."""


class UsageRecord(AttemptUsage):
    """Usage of one attempt at a step or a trial; or the idle time of a lease's machines.

    Null is unknown (not 0).
    """

    run_id: str
    step: str
    """Name of the step; for a lease's idle time, the lease's id."""
    trial: int = 0
    """Number of the trial in the suite; 0 if there is none."""
    attempt: int = 1
    kind: str
    """Kind of the step, `trial`, or `idle`."""
    suite: str = ""
    """Run of its suite; empty if there is none."""
    lease_id: str
    owner: str
    """User whose run it is."""
    site_name: str
    recipe_name: str
    role: str
    """Role of its lease."""
    state: StepState
    cause: str
    """Why it ended: a failure class, else its state; `idle` for idle time."""
    node_kind: str = ""
    """Type of the machine."""
    started_at: float | None = None
    finished_at: float | None = None
    day: str
    """Day on which it ended, or was last observed, in UTC: `2026-11-23`; its first seven letters
    are the month that it is counted in."""
    node_s: float = 0.0
    """Seconds of machines that it used; for a part of a node, that part of the seconds."""
    gpu_s: float = 0.0
    """Seconds of GPUs that it held."""
    queue_s: float | None = None
    """Seconds of waiting for its machines in the queue; they cost nothing."""
    boot_s: float | None = None
    """Seconds of waiting for its machines to boot and join; idle time of the lease."""
    idle_s: float | None = None
    """Seconds of idle machines; part of `node_s`."""
    failed_s: float | None = None
    """Machine seconds of an attempt that did not succeed: all of `node_s`."""
    usd_per_hour: float | None = None
    """US dollars per hour of its machines."""
    price_source: str = ""
    """Origin of the price."""
    price_as_of: str = ""
    """Date of the price; empty if unknown."""
    usd: float | None = None
    """US dollars; null if a price is unknown."""
    usd_staging: float | None = None
    """The part of `usd` for staging."""
    usd_idle: float | None = None
    """The part of `usd` for idle time."""
    usd_failed: float | None = None
    """The part of `usd` for attempts that did not succeed: all of theirs."""
    created_at: float
    """When it was requested."""


KEY = ("run_id", "step", "trial", "attempt")

_TYPES: Mapping[Any, Any] = {**LedgerRow.type_annotation_map, int: Integer}


def _column(name: str, annotation: Any) -> Column[Any]:
    """Return the column of a field; a count that may be null is large."""
    kind, *null = get_args(annotation) or (annotation,)
    stored = BigInteger if null and kind is int else _TYPES[kind]
    return Column(name, stored, primary_key=name in KEY, nullable=bool(null))


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

KEYS = ("day", "suite", "owner", "site_name", "recipe_name", "role", "kind", "cause")
"""Columns that usage is summed by in advance."""

COUNTS = ("entries", "attempts", "unpriced")
"""Counters: rows, rows of attempts, rows without a price."""


class UsageSum(NamedTuple):
    """Sums of several attempts, with lost time; the sums are `FIGURES`.

    A tuple, since a suite has as many as trials.
    """

    name: str
    """Common value: a user, a site, a month, …"""
    attempts: int
    """Attempts at steps and trials; idle time of a lease does not count."""
    unpriced: int
    """Rows without a known price: their time is counted, but no money."""
    usd: float
    usd_staging: float
    usd_idle: float
    usd_failed: float
    node_s: float
    gpu_s: float
    queue_s: float
    boot_s: float
    start_s: float
    staging_s: float
    data_wait_s: float
    train_s: float
    evaluate_s: float
    idle_s: float
    failed_s: float
    samples: float
    energy_wh: float
    stored_bytes: float
    fetched_bytes: float


FIGURES = UsageSum._fields[3:]
"""Summed columns; null counts as 0."""

SUMS = Table(
    "headrace_usage_sums",
    LedgerRow.metadata,
    *(Column(name, Text, primary_key=True) for name in KEYS),
    *(Column(name, BigInteger, nullable=False) for name in COUNTS),
    *(Column(name, Number, nullable=False) for name in FIGURES),
)
"""Sums of usage, updated with every change: summing a million rows takes too long."""
