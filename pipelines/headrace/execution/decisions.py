"""What a step of a run needs next: a pure function of what was observed and is remembered.

A driver repeats: observe, decide, act (`step_attempts`). Drivers differ in how they wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace import errors
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.recipe import RetryPolicy
from headrace.states import FailureClass, StepState
from headrace.status.lease import Look
from headrace.status.step import ended_of
from headrace.steps import retry_policy
from headrace.steps.mailbox import StepResult
from headrace.steps.retry_policy import Attempt

_RETRY_PAUSE_S = 3.0  # short: a task of Airflow holds its place meanwhile
_SILENT_PAUSE_S = 10.0
_ROOM_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class RunningAttempt:
    """An attempt in the mailbox of a lease."""

    step: str
    attempt: int
    folder: StepFolder

    @property
    def lease(self) -> LeaseFolder:
        """Folder of the lease."""
        return LeaseFolder(self.folder.path.parents[1])


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A step of a run at one moment."""

    policy: RetryPolicy
    attempts: Sequence[AttemptRecord] = ()
    """Rows of the ledger, the oldest first; not read while an attempt is followed."""
    has_more_to_do: bool = False
    """Whether the step has succeeded, and must run again."""
    ticket: RunningAttempt | None = None
    """The newest attempt, if it is in a mailbox and not recorded as ended."""
    look: Look | None = None
    """How that attempt and its lease stand."""
    timeout_s: float | None = None
    can_grow: bool = False
    """Whether the next lease gets more time than the last one had."""
    is_open: bool = False
    """Whether the lease of the newest attempt, which is in no mailbox, still takes steps."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a driver remembers of a step from one action to the next."""

    num_before: int = 0
    """Attempts that do not count: the step was requested anew after them."""
    ticket: RunningAttempt | None = None
    """The attempt that is followed."""
    is_ready: bool = False
    """Whether it is recorded that the machines of that attempt were there."""
    unopened: tuple[FailureClass, ...] = ()
    """Classes of the errors of leases that did not open since the last attempt."""
    revived_after: tuple[str, ...] = ()
    """Reasons of a cancellation after which another attempt is made, once in a row."""
    is_revived: bool = False
    result: StepResult | None = None
    """Outcome of the attempt that was followed."""
    error: errors.HeadraceError | None = None
    """Why the last action was not possible."""
    is_ending: bool = False
    """Whether the run ends, with its leases: the step gets no more attempts."""


@dataclass(frozen=True, kw_only=True)
class Attach:
    """Follow an attempt that runs, and record its machines if they are there."""

    ticket: RunningAttempt
    is_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Submit an attempt to the step's lease, which is opened if need be."""

    attempt: int
    row: AttemptRecord | None = None
    """Its row, if its writer ended before it was in a mailbox."""


@dataclass(frozen=True, kw_only=True)
class WriteOff:
    """Record the end of an attempt whose lease has ended; it is lost if it left no result."""

    row: AttemptRecord


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Record the end of an attempt."""

    ticket: RunningAttempt
    counts: bool
    """Whether it was followed; the failure of another one is recorded, and does not count."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Observe again later."""

    on: Literal["step", "room", "queue", "retry"]
    then: Memory
    why: str = ""
    """Why not now; of a step that runs, what its lease waits for in a queue."""
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class End:
    """The step has succeeded, has failed for good, or gets no lease."""

    cause: StepResult | errors.HeadraceError
    why: str = ""
    """Why the step is given up; empty if it has succeeded."""
    explained: int | None = None
    """The attempt whose row gets `why` as its message."""


Action = Attach | Submit | WriteOff | Collect | Wait | End


def decide(now: Situation, memory: Memory) -> Action:
    """Return what to do next; an attempt is submitted only if no other one may be running."""
    newest = now.attempts[-1] if now.attempts else None
    if memory.is_ending:
        return _while_ending(now.attempts)
    if memory.error is not None:
        return _after_error(now, memory, memory.error)
    if memory.result is not None:
        return _after_end(now, memory, memory.result)
    if now.look is not None and now.ticket is not None:
        return _while_running(now.ticket, now.look, memory)
    if newest is None:
        return Submit(attempt=1)
    if newest.state is StepState.SUCCEEDED and not now.has_more_to_do:
        return End(cause=_result_of(newest))
    if newest.state.is_final:
        return Submit(attempt=newest.attempt + 1)
    return Submit(attempt=newest.attempt, row=newest) if now.is_open else WriteOff(row=newest)


def _while_ending(attempts: Sequence[AttemptRecord]) -> Action:
    left = [row for row in attempts if not row.state.is_final]
    if left:
        return WriteOff(row=left[0])
    if not attempts:
        error = errors.EndedRunError("The run has ended, and this step has not begun")
        return End(why=error.what, cause=error)
    newest = attempts[-1]
    why = "" if newest.state is StepState.SUCCEEDED else newest.message or newest.state.value
    return End(why=why, cause=_result_of(newest))


def _while_running(ticket: RunningAttempt, look: Look, memory: Memory) -> Action:
    if memory.ticket is None:
        return Collect(ticket=ticket, counts=False) if look.final else Attach(ticket=ticket)
    if look.lease.dashboard_url and not memory.is_ready:
        return Attach(ticket=ticket, is_ready=True)
    if look.final:
        return Collect(ticket=ticket, counts=True)
    return Wait(on="step", then=memory, why=look.lease.waits_for)


def _after_error(now: Situation, memory: Memory, error: errors.HeadraceError) -> Action:
    again = replace(memory, error=None)
    if isinstance(error, errors.StepNotEndedError):
        return Wait(on="step", then=again, why=error.what)
    if isinstance(error, errors.SilentError | errors.QueueFullError):  # nothing is given up
        pause_s = _SILENT_PAUSE_S if isinstance(error, errors.SilentError) else _ROOM_PAUSE_S
        return Wait(on="queue", then=again, why=error.what, pause_s=pause_s)
    if isinstance(error, errors.CapacityError):
        return Wait(on="room", then=again, why=error.what, pause_s=_ROOM_PAUSE_S)
    unopened = (*memory.unopened, error.failure_class)
    failures = [Attempt(failure_class=each) for each in unopened]
    if not retry_policy.decide(failures, now.policy).again:
        return End(why=str(error), cause=error)
    return _retry(replace(again, unopened=unopened), error.what)


def _after_end(now: Situation, memory: Memory, result: StepResult) -> Action:
    if result.state is StepState.SUCCEEDED:
        return End(cause=result)
    failure = result.failure
    why = (failure.message if failure is not None else "") or result.state.value
    again = replace(memory, result=None)
    may_revive = result.state is StepState.CANCELLED and not memory.is_revived
    if may_revive and any(reason in why for reason in memory.revived_after):
        return Wait(on="retry", then=replace(again, is_revived=True), why=why)
    counted = now.attempts[memory.num_before :]
    if failure is None or not counted:
        return End(why=why, cause=result)
    failures = [ended_of(each) for each in counted]
    decision = retry_policy.decide(
        failures, now.policy, timeout_s=now.timeout_s, grows=now.can_grow
    )
    if decision.again:
        return _retry(replace(again, unopened=(), is_revived=False), why)
    if not decision.why_not:
        return End(why=why, cause=result)
    why = f"{why}\n  {decision.why_not}"
    failure = failure.model_copy(update={"message": why})
    if decision.is_programs_fault:
        failure = failure.model_copy(update={"failure_class": FailureClass.USER_ERROR})
    cause = result.model_copy(update={"failure": failure})
    return End(why=why, cause=cause, explained=counted[-1].attempt)


def _retry(then: Memory, why: str) -> Wait:
    return Wait(on="retry", then=then, why=why, pause_s=_RETRY_PAUSE_S)


def _result_of(row: AttemptRecord) -> StepResult:
    return StepResult(
        state=row.state,
        outputs=dict(row.outputs),
        started_at=row.started_at or row.created_at,
        finished_at=row.finished_at or row.created_at,
    )
