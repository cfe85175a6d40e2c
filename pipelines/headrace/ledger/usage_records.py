"""Rows of usage: time, machines and money of each attempt, and their sums."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text
from sqlalchemy.orm import Mapped, mapped_column

from headrace.ledger.columns import LedgerRow, Number
from headrace.ledger.rows import LeaseRecord, RunRecord
from headrace.states import StepState

IDLE = "idle"
"""Kind and cause of a row with the time of a lease's machines that no attempt used."""


class UsageRecord(LedgerRow, kw_only=True):
    """Usage of one attempt at a step or a trial; or the idle time of a lease's machines.

    `created_at` is when it was requested. Null is unknown (not 0).
    """

    __tablename__ = "headrace_usage"
    __table_args__ = (Index("headrace_usage_by_lease", "lease_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRecord.run_id), primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    """Name of the step; for a lease's idle time, the lease's id."""
    trial: Mapped[int] = mapped_column(primary_key=True, default=0)
    """Number of the trial in the suite; 0 if there is none."""
    attempt: Mapped[int] = mapped_column(primary_key=True, default=1)
    kind: Mapped[str]
    """Kind of the step, `trial`, or `idle`."""
    suite: Mapped[str] = mapped_column(default="")
    """Run of its suite; empty if there is none."""
    lease_id: Mapped[str] = mapped_column(ForeignKey(LeaseRecord.lease_id))
    owner: Mapped[str]
    """User whose run it is."""
    site_name: Mapped[str]
    recipe_name: Mapped[str]
    role: Mapped[str]
    """Role of its lease."""
    state: Mapped[StepState]
    cause: Mapped[str]
    """Why it ended: a failure class, else its state; `idle` for idle time."""
    node: Mapped[str] = mapped_column(default="")
    """Node it ran on; the first of several."""
    node_kind: Mapped[str] = mapped_column(default="")
    """Type of the machine."""
    nodes: Mapped[int] = mapped_column(default=1)
    gpus: Mapped[float] = mapped_column(default=0.0)
    """GPUs that it held on all nodes; a fraction of one that trials share."""
    cpus: Mapped[float] = mapped_column(default=0.0)
    """CPUs that it held on all nodes."""
    started_at: Mapped[float | None] = mapped_column(default=None)
    finished_at: Mapped[float | None] = mapped_column(default=None)
    day: Mapped[str]
    """Day on which it ended, or was last observed, in UTC: `2026-11-23`; its first seven letters
    are the month that it is counted in."""
    node_s: Mapped[float] = mapped_column(default=0.0)
    """Seconds of machines that it used; for a part of a node, that part of the seconds."""
    gpu_s: Mapped[float] = mapped_column(default=0.0)
    """Seconds of GPUs that it held."""
    queue_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds of waiting for its machines in the queue; they cost nothing."""
    boot_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds of waiting for its machines to boot and join; idle time of the lease."""
    start_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds until the first batch."""
    staging_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds of staging shards onto its nodes."""
    data_wait_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds in which training waited for data; part of `train_s`."""
    train_s: Mapped[float | None] = mapped_column(default=None)
    evaluate_s: Mapped[float | None] = mapped_column(default=None)
    idle_s: Mapped[float | None] = mapped_column(default=None)
    """Seconds of idle machines; part of `node_s`."""
    failed_s: Mapped[float | None] = mapped_column(default=None)
    """Machine seconds of an attempt that did not succeed: all of `node_s`."""
    samples: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Samples trained on, every epoch counted, or packed."""
    stored_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Bytes that it added to packed datasets."""
    fetched_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Bytes that it read from an object store."""
    cpu_use: Mapped[float | None] = mapped_column(default=None)
    """Mean share of its CPUs that was busy, 0 to 1."""
    gpu_use: Mapped[float | None] = mapped_column(default=None)
    """Mean share of time in which its GPUs were busy, 0 to 1."""
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Most memory of its processes."""
    gpu_memory_bytes: Mapped[int | None] = mapped_column(BigInteger, default=None)
    """Most memory of one of its GPUs."""
    energy_wh: Mapped[float | None] = mapped_column(default=None)
    """Watt-hours of its GPUs."""
    usd_per_hour: Mapped[float | None] = mapped_column(default=None)
    """US dollars per hour of its machines."""
    price_source: Mapped[str] = mapped_column(default="")
    """Origin of the price."""
    price_as_of: Mapped[str] = mapped_column(default="")
    """Date of the price; empty if unknown."""
    usd: Mapped[float | None] = mapped_column(default=None)
    """US dollars; null if a price is unknown."""
    usd_staging: Mapped[float | None] = mapped_column(default=None)
    """The part of `usd` for staging."""
    usd_idle: Mapped[float | None] = mapped_column(default=None)
    """The part of `usd` for idle time."""
    usd_failed: Mapped[float | None] = mapped_column(default=None)
    """The part of `usd` for attempts that did not succeed: all of theirs."""


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
