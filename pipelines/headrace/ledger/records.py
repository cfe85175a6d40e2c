"""Rows of the ledger as frozen records."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from typing_extensions import TypedDict

from headrace.record import Figures
from headrace.states import FailureClass, LeaseState, StepState


class RunRecord(Figures):
    """One execution of a recipe on a site."""

    run_id: str
    """Identity of the run, as in its folder's name."""
    key: str
    """What asked for the run, as in an Airflow run id; adding it twice gives one run."""
    recipe_name: str
    """Name of the recipe."""
    site_name: str
    """Name of the site."""
    recipe_fingerprint: str
    """Fingerprint of the resolved recipe."""
    folder: str
    """Folder of the run."""
    state: StepState
    """State of the run as a whole."""
    owner: str = ""
    """Who asked for it."""
    overrides: tuple[str, ...] = ()
    """Overrides `key=value` of the recipe."""
    created_at: float
    """When it was asked for, seconds since the epoch."""
    finished_at: float | None = None
    """When it ended, seconds since the epoch; null while it goes on."""
    outputs: dict[str, Any] = {}
    """What it gave, JSON values."""


class LostNode(Figures):
    """A job of a pool that ended by itself, or did not do what it should."""

    node: str
    """Name of the node, as in `node-0`."""
    job_id: str
    """Id of the job."""
    host: str
    """Where it ran, as the batch system knows it; empty when that is not known."""
    why: str
    """How it ended, for the user."""
    at: float
    """When that was seen, seconds since the epoch."""


class LeaseRecord(Figures):
    """One lease of machines, taken for a run."""

    lease_id: str
    """Identity of the lease, as in its folder's name."""
    key: str
    """What the lease is for, as in `<run_id>/<role>`; a later lease may have the same key."""
    run_id: str
    """The run it was taken for."""
    site_name: str
    """Site that gives the machines; the site's limit counts these."""
    role: str
    """Role of the site."""
    backend: str
    """Backend that gives the machines."""
    folder: str
    """Folder of the lease."""
    state: LeaseState
    """State of the lease."""
    job_ids: tuple[str, ...] = ()
    """Ids that the backend gave: processes, jobs, instances."""
    dashboard_url: str = ""
    """Address of the Dask dashboard; empty while there is none."""
    created_at: float
    """When it was asked for, seconds since the epoch."""
    ready_at: float | None = None
    """When its machines were there, seconds since the epoch."""
    ended_at: float | None = None
    """When it ended, seconds since the epoch."""
    why_ended: str = ""
    """Why it ended."""
    lost_nodes: tuple[LostNode, ...] = ()
    """Jobs of a pool that came to an early end, the newest last, not more than the last twenty;
    written when the lease has ended."""


class AttemptRecord(Figures):
    """One attempt at a step of a run."""

    run_id: str
    """The run."""
    step: str
    """Name of the step, unique in its run."""
    kind: str
    """Kind of the step: pack, stage, train, evaluate."""
    attempt: int = Field(ge=1)
    """Number of the attempt, from 1."""
    key: str
    """Identity of the attempt in the mailbox, `<run_id>/<step>/<attempt>`."""
    lease_id: str
    """The lease it runs in."""
    number: int | None = None
    """Number in the lease's mailbox; null until submitted."""
    state: StepState
    """State of the attempt."""
    failure_class: FailureClass | None = None
    """Why it failed; null when it did not."""
    message: str = ""
    """What happened, for the user."""
    created_at: float
    """When it was asked for, seconds since the epoch."""
    started_at: float | None = None
    """When its driver started, seconds since the epoch."""
    finished_at: float | None = None
    """When it ended, seconds since the epoch."""
    outputs: dict[str, Any] = {}
    """What later steps and the report need, JSON values."""


class LeaseChanges(TypedDict, total=False):
    """What may change in a lease besides its state; a key left out or None changes nothing."""

    job_ids: tuple[str, ...] | None
    dashboard_url: str | None
    ready_at: float | None
    ended_at: float | None
    why_ended: str | None
    lost_nodes: tuple[LostNode, ...] | None


class AttemptChanges(TypedDict, total=False):
    """What may change in an attempt; a key left out or None changes nothing."""

    state: StepState | None
    lease_id: str | None
    number: int | None
    failure_class: FailureClass | None
    message: str | None
    started_at: float | None
    finished_at: float | None
    outputs: dict[str, Any] | None


class LedgerSummary(Figures):
    """How much the ledger holds."""

    url: str
    """Where it is, without the password."""
    revision: str
    """Revision of its schema."""
    num_runs: int
    """Runs."""
    num_leases: int
    """Leases."""
    num_active_leases: int
    """Leases that hold, or are about to hold, machines."""
    num_attempts: int
    """Attempts at steps."""
