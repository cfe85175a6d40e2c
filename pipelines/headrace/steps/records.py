"""The files of a step folder as frozen records: spec, status, result."""

from __future__ import annotations

import time
from typing import Any

from pydantic import Field, JsonValue

from headrace.record import Figures, Record
from headrace.states import FailureClass, StepState


class StepSpec(Record):
    """Input of one attempt at a step; immutable once in the mailbox."""

    key: str
    """Identity of the attempt, `<run_id>/<name>/<attempt>`: submitting it twice gives one step."""
    kind: str
    """Entry of the step registry: pack, stage, train, evaluate."""
    run_id: str
    """The run the step belongs to."""
    name: str
    """Name of the step, unique in its run."""
    attempt: int = Field(ge=1)
    """Number of the attempt, from 1."""
    run_folder: str
    """Folder of the run, with the resolved recipe and site."""
    inputs: dict[str, JsonValue] = {}
    """What earlier steps gave: paths, numbers."""
    timeout_s: float | None = None
    """The step ends as timed out after this many seconds; null for no limit."""


class Progress(Record):
    """How far a step is."""

    done: float = 0
    """Units done."""
    total: float | None = None
    """Units in all; null when not known yet."""
    unit: str = ""
    """What is counted: samples, shards, steps, bytes."""
    phase: str = ""
    """What goes on now, in a few words."""


class StepStatus(Figures):
    """How a step stands; replaced every second while it runs."""

    state: StepState
    """State of the step."""
    progress: Progress = Progress()
    """How far it is."""
    rate: float | None = None
    """Units a second, over the last half minute."""
    eta_s: float | None = None
    """Seconds until the end at that rate; null when not known."""
    elapsed_s: float = 0.0
    """Seconds since the driver started."""
    metrics: dict[str, float] = {}
    """Newest figures: loss, data_wait, samples_per_s, …"""
    restarts: tuple[str, ...] = ()
    """Why the step's processes were started again within this attempt, each time."""
    updated_at: float = Field(default_factory=time.time)
    """When this was written, seconds since the epoch."""


class Failure(Record):
    """Why a step failed."""

    failure_class: FailureClass
    """Decides whether the step is tried again."""
    error: str
    """Name of the error."""
    message: str
    """What happened and what to do, for the user."""
    trace: str = ""
    """Trace of user code; empty for errors that need none."""
    where: str = ""
    """Rank, worker or node it happened on, when known."""


class StepResult(Record):
    """Outcome of one attempt; written once, last."""

    state: StepState
    """A final state."""
    failure: Failure | None = None
    """Why it did not succeed."""
    outputs: dict[str, Any] = {}
    """What later steps and the report need, JSON values."""
    started_at: float
    """When the driver started, seconds since the epoch."""
    finished_at: float
    """When it ended."""


class DriverExit(Record):
    """How the driver process ended, written by the lease's host."""

    code: int
    """Exit code; minus the signal number when a signal ended it."""
    at: float
    """When, seconds since the epoch."""
    why: str = ""
    """Why the lease ended, which ended it; empty when it was not the lease."""
