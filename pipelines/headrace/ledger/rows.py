"""Rows of the ledger, equal on SQLite and PostgreSQL; times are seconds since the epoch.

Names of tables start with `headrace_`, so that the ledger can share a database with other tables.
Returned rows are copies: changing them does not change the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, ForeignKey, Index, Select, false, or_, select
from sqlalchemy.orm import Mapped, mapped_column

from headrace.ledger.columns import Json, LedgerRow
from headrace.states import EndedJob, FailureClass, LeaseState, Removal, StepState

REVISION = "0011"
"""Revision of the schema, raised with every change of a table."""

REVISION_TABLE = "headrace_schema"
"""Table with the revision."""


class RunRecord(LedgerRow, kw_only=True):
    """One execution of a recipe on a site."""

    __tablename__ = "headrace_runs"
    __table_args__ = (
        Index("headrace_runs_by_time", "created_at"),
        Index("headrace_runs_by_whole", "part_of"),
    )

    run_id: Mapped[str] = mapped_column(primary_key=True)
    """Identity of the run, as in its folder's name."""
    key: Mapped[str] = mapped_column(unique=True)
    """Origin of the run, as an Airflow run id; adding it twice gives one run."""
    recipe_name: Mapped[str]
    site_name: Mapped[str]
    recipe_fingerprint: Mapped[str]
    folder: Mapped[str]
    state: Mapped[StepState]
    owner: Mapped[str] = mapped_column(default="")
    overrides: Mapped[tuple[str, ...]] = mapped_column(Json(tuple[str, ...]), default=())
    """Overrides `key=value` of the recipe."""
    kind: Mapped[str] = mapped_column(default="", server_default="")
    """`train`, `suite`, …, as in `RunRequest`, or `rehearsal`; of an earlier release `train`,
    `suite` or empty, with neither dataset nor seed."""
    user: Mapped[str] = mapped_column(default="", server_default="")
    """The requester, by the name of the Unix account; empty: of an earlier release, no lease."""
    dataset: Mapped[str] = mapped_column(default="", server_default="")
    """Name of its dataset; empty if it has none."""
    seed: Mapped[int | None] = mapped_column(BigInteger, default=None)
    tags: Mapped[tuple[str, ...]] = mapped_column(
        Json(tuple[str, ...]), default=(), server_default="[]"
    )
    note: Mapped[str] = mapped_column(default="", server_default="")
    is_starred: Mapped[bool] = mapped_column(default=False, server_default=false())
    finished_at: Mapped[float | None] = mapped_column(default=None)
    """When it ended; null while it runs."""
    outputs: Mapped[dict[str, Any]] = mapped_column(Json(dict[str, Any]), default_factory=dict)
    """Its outputs, JSON values."""
    sizes: Mapped[dict[str, int] | None] = mapped_column(Json(dict[str, int] | None), default=None)
    """Bytes on disk by part, since its end; null until they are measured."""
    removed: Mapped[Removal | None] = mapped_column(Json(Removal | None), default=None)
    """What is gone of its files; null if nothing is."""
    is_forgotten: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether lists leave it out: its files are gone, and a user wants this."""
    part_of: Mapped[str] = mapped_column(default="", server_default="")
    """Suite over several sites that it is a part of, by its key; empty if there is none."""

    def __post_init__(self) -> None:
        """Find the suite of a part."""
        if self.kind == "part":
            self.part_of = self.key.rpartition("/at/")[0]


def with_parts(run_id: ColumnElement[str] | str) -> Select[str]:
    """Return a query of the ids of a run, and of its parts if it is a suite over several sites."""
    is_meant = or_(RunRecord.run_id == run_id, RunRecord.part_of == run_id)
    return select(RunRecord.run_id).where(is_meant)


class LeaseRecord(LedgerRow, kw_only=True):
    """One lease of machines, taken for a run."""

    __tablename__ = "headrace_leases"
    __table_args__ = (
        Index("headrace_leases_by_key", "key", "created_at"),
        Index("headrace_leases_by_run", "run_id"),
        Index("headrace_leases_by_state", "state", "site_name"),
    )

    lease_id: Mapped[str] = mapped_column(primary_key=True)
    """Identity of the lease, as in its folder's name."""
    key: Mapped[str]
    """Purpose of the lease, `<run_id>/<role>`; a later lease may have the same key."""
    run_id: Mapped[str] = mapped_column(ForeignKey(RunRecord.run_id))
    site_name: Mapped[str]
    """Site of the machines; the site's limit counts its leases."""
    role: Mapped[str]
    backend: Mapped[str]
    folder: Mapped[str]
    state: Mapped[LeaseState]
    job_ids: Mapped[tuple[str, ...]] = mapped_column(Json(tuple[str, ...]), default=())
    """Ids from the backend: processes, jobs, instances."""
    dashboard_url: Mapped[str] = mapped_column(default="")
    """Address of the Dask dashboard; empty if there is none."""
    ready_at: Mapped[float | None] = mapped_column(default=None)
    """When its machines were ready."""
    ended_at: Mapped[float | None] = mapped_column(default=None)
    why_ended: Mapped[str] = mapped_column(default="")
    owner: Mapped[str] = mapped_column(default="", server_default="")
    """User whose run it is."""
    lost_nodes: Mapped[tuple[EndedJob, ...]] = mapped_column(
        Json(tuple[EndedJob, ...]), default=(), server_default="[]"
    )
    """Jobs of a pool that ended early, the newest last, at most twenty; written at the lease's
    end."""


class WaitRecord(LedgerRow, kw_only=True):
    """A lease that waits for a slot on its site, since `created_at`."""

    __tablename__ = "headrace_waits"

    key: Mapped[str] = mapped_column(primary_key=True)
    """Key of the lease."""
    run_id: Mapped[str] = mapped_column(ForeignKey(RunRecord.run_id))
    site_name: Mapped[str]
    owner: Mapped[str]
    """User whose run it is."""
    called_at: Mapped[float | None] = mapped_column(default=None)
    """When another lease was refused in its favour, after its own last request."""


class MachineRecord(LedgerRow, kw_only=True):
    """One machine of a lease, and its cost; `created_at` is when it was requested.

    Queue wait is `started_at - created_at`; boot, software and join are the spans between
    `started_at`, `booted_at`, `prepared_at` and `joined_at`.
    """

    __tablename__ = "headrace_machines"
    __table_args__ = (Index("headrace_machines_by_end", "ended_at"),)

    lease_id: Mapped[str] = mapped_column(ForeignKey(LeaseRecord.lease_id), primary_key=True)
    machine_id: Mapped[str] = mapped_column(primary_key=True)
    """Its identifier at its provider: an instance's id, a node's name."""
    job: Mapped[str]
    """Name of the job that it belongs to."""
    kind: Mapped[str]
    """Type of the machine."""
    market: Mapped[str]
    """How it is paid for: `on-demand`, `spot`, …; empty if there is only one way."""
    place: Mapped[str]
    """Its zone, which begins with the region."""
    started_at: Mapped[float]
    """When it was available, and began to cost."""
    booted_at: Mapped[float | None] = mapped_column(default=None)
    """When its user data, or job script, began."""
    prepared_at: Mapped[float | None] = mapped_column(default=None)
    """When the software was ready, and its worker's process began."""
    joined_at: Mapped[float | None] = mapped_column(default=None)
    """When its worker had joined the lease."""
    seen_at: Mapped[float]
    """When it was last known to exist."""
    ended_at: Mapped[float | None] = mapped_column(default=None)
    """When it ended; null while it costs, as far as known."""
    is_estimate: Mapped[bool] = mapped_column(default=False)
    """Whether its begin or end is unknown, and the last observation counts instead."""
    billed_s: Mapped[float]
    """Seconds to be paid for, until its end, or its last observation."""
    usd_per_hour: Mapped[float | None] = mapped_column(default=None)
    """US dollars per hour; null if unknown (not 0)."""
    price_source: Mapped[str] = mapped_column(default="")
    """Origin of the price."""
    price_as_of: Mapped[str] = mapped_column(default="")
    """Date of the price; empty if unknown."""


class AttemptRecord(LedgerRow, kw_only=True):
    """One attempt at a step of a run."""

    __tablename__ = "headrace_attempts"
    __table_args__ = (Index("headrace_attempts_by_lease", "lease_id"),)

    run_id: Mapped[str] = mapped_column(ForeignKey(RunRecord.run_id), primary_key=True)
    step: Mapped[str] = mapped_column(primary_key=True)
    """Name of the step, unique in its run."""
    attempt: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    """Kind of the step: pack, stage, train, evaluate."""
    key: Mapped[str] = mapped_column(unique=True)
    """Identity of the attempt in the mailbox, `<run_id>/<step>/<attempt>`."""
    lease_id: Mapped[str] = mapped_column(ForeignKey(LeaseRecord.lease_id))
    number: Mapped[int | None] = mapped_column(default=None)
    """Number in the lease's mailbox; null until submitted."""
    state: Mapped[StepState]
    failure_class: Mapped[FailureClass | None] = mapped_column(default=None)
    message: Mapped[str] = mapped_column(default="")
    started_at: Mapped[float | None] = mapped_column(default=None)
    """When its driver started."""
    finished_at: Mapped[float | None] = mapped_column(default=None)
    outputs: Mapped[dict[str, Any]] = mapped_column(Json(dict[str, Any]), default_factory=dict)
    """What later steps and the report need, JSON values."""

    @property
    def took_s(self) -> float | None:
        """Seconds that it took; None before its end, or without a start."""
        if self.started_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.started_at


@dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """How much the ledger holds."""

    url: str
    """Its URL, without the password."""
    revision: str
    num_runs: int
    num_leases: int
    num_active_leases: int
    """Leases that hold machines, or request them."""
    num_attempts: int
