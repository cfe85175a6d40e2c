"""States of a piece of work, and why it failed."""

from __future__ import annotations

import time
from enum import Enum

from pydantic import Field

from headrace.record import Record

DRIVER_ROLE = "driver"
"""Role of the lease in which the driver of a suite over several sites runs: on this machine, and
not counted as a lease of the site."""


class StepState(str, Enum):
    """State of a step or of one attempt at it."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether the state never changes again."""
        return self not in (StepState.QUEUED, StepState.RUNNING)


class LeaseState(str, Enum):
    """State of a lease as the control side knows it."""

    STARTING = "starting"
    READY = "ready"
    CLOSED = "closed"
    FAILED = "failed"
    LOST = "lost"

    @property
    def is_active(self) -> bool:
        """Whether the lease holds machines, or is about to."""
        return self in (LeaseState.STARTING, LeaseState.READY)


class FailureClass(str, Enum):
    """Why work failed; decides whether another attempt makes sense."""

    USER_ERROR = "user_error"
    DATA_ERROR = "data_error"
    OUT_OF_MEMORY = "out_of_memory"
    CAPACITY = "capacity"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def is_retried(self) -> bool:
        """Whether a new attempt, from the last checkpoint, may succeed."""
        return self not in (
            FailureClass.USER_ERROR,
            FailureClass.DATA_ERROR,
            FailureClass.CANCELLED,
        )


BY_HAND = "hand"
"""In place of the user of a removal that headrace did not do."""


class Removal(Record):
    """When a run's files were removed, all but its record, and by whom."""

    at: float
    """When it was removed, or was found to be gone; seconds since the epoch."""
    by: str
    """The user; `BY_HAND` if headrace did not remove it."""

    @property
    def words(self) -> str:
        """Return the same for users: `removed on 2026-11-29 by ada`."""
        return f"removed on {time.strftime('%Y-%m-%d', time.gmtime(self.at))} by {self.by}"


class EndedJob(Record):
    """A job of a pool that ended by itself, or failed."""

    node: str
    """Name of the node, as in `node-0`."""
    job_id: str
    host: str
    """The machine it ran on, by the batch system's name; empty if unknown."""
    why: str
    """How it ended, for the user."""
    at: float = Field(default_factory=time.time)
    """When the end was noticed, seconds since the epoch."""
