"""The mailbox: numbered step folders through which the control side talks to a lease."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator

from filelock import FileLock

from headrace.errors import LeaseLostError
from headrace.files.atomic import leave_word, publish_folder, read_record, write_record
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.states import FailureClass, StepState
from headrace.steps.records import DriverExit, Failure, StepResult, StepSpec, StepStatus

_LOCK_TIMEOUT_S = 60.0

_STATES = {
    FailureClass.PREEMPTED: StepState.PREEMPTED,
    FailureClass.TIMED_OUT: StepState.TIMED_OUT,
    FailureClass.USER_ERROR: StepState.FAILED,
    FailureClass.OUT_OF_MEMORY: StepState.FAILED,
}


def submit(lease: LeaseFolder, spec: StepSpec) -> StepFolder:
    """Put a step into the lease's mailbox, or find the one with its key that is there.

    The folder appears whole and under the next free number, so that two writers at once, or one
    killed half way, leave no gap.

    Raises:
        LeaseLostError: The lease has ended; nobody would take the step.
    """
    if lease.closed.exists() or not lease.path.exists():
        raise LeaseLostError(f"Lease {lease.lease_id} has ended; step {spec.key} was not submitted")
    lease.steps.mkdir(exist_ok=True)
    with FileLock(lease.steps / ".lock", timeout=_LOCK_TIMEOUT_S):
        return find(lease, spec.key) or _publish(lease, spec)


def _publish(lease: LeaseFolder, spec: StepSpec) -> StepFolder:
    prepared = lease.steps / f".{uuid.uuid4().hex}"
    prepared.mkdir()
    try:
        StepFolder(prepared).logs.mkdir()
        StepFolder(prepared).parts.mkdir()
        write_record(StepFolder(prepared).spec, spec)
        number = 1
        while not publish_folder(prepared, lease.step(number).path):
            number += 1
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
    return lease.step(number)


def submitted(lease: LeaseFolder) -> Iterator[StepFolder]:
    """All steps of the lease in order of their numbers."""
    number = 1
    while lease.step(number).path.exists():
        yield lease.step(number)
        number += 1


def find(lease: LeaseFolder, key: str) -> StepFolder | None:
    """The step with this key, if it was submitted."""
    for folder in submitted(lease):
        spec = read_record(folder.spec, StepSpec)
        if spec is not None and spec.key == key:
            return folder
    return None


def request_cancel(folder: StepFolder, reason: str) -> None:
    """Ask a step to stop; harmless when it has ended."""
    if not folder.cancel.exists():
        leave_word(folder.cancel, reason)


def status(folder: StepFolder) -> StepStatus:
    """How a step stands; queued until its driver has written something."""
    return read_record(folder.status, StepStatus) or StepStatus(state=StepState.QUEUED)


def outcome(folder: StepFolder) -> StepResult | None:
    """The result of a step, also of one whose driver died before; None while it may still end."""
    ended = read_record(folder.exit, DriverExit)  # first: the result is written before
    result = read_record(folder.result, StepResult)
    if result is None and ended is not None:
        return _without_result(folder, ended)
    return result


def lost(folder: StepFolder, why: str) -> StepResult:
    """Result of a step whose lease is gone, and what is known about its end."""
    now = time.time()
    if folder.cancel.exists():
        return _cancelled(folder, now)
    return _lost(folder, why, now)


def blamed(lost: StepResult, why: str, failure_class: FailureClass) -> StepResult:
    """A lost step whose cause became known.

    Args:
        lost: Its result so far.
        why: The cause, for the user; it goes in front of what was known, unless that begins so.
        failure_class: What the cause means for another attempt.
    """
    known = lost.failure.message if lost.failure is not None else ""
    message = known if known.startswith(why) else "; ".join(filter(None, (why, known)))
    failure = Failure(failure_class=failure_class, error="", message=message)
    state = _STATES.get(failure_class, StepState.LOST)
    return lost.model_copy(update={"state": state, "failure": failure})


def was_killed(folder: StepFolder) -> bool:
    """Whether the step's driver was ended by a signal, as by the end of its lease's job."""
    ended = read_record(folder.exit, DriverExit)
    return ended is not None and ended.code < 0


def _without_result(folder: StepFolder, ended: DriverExit) -> StepResult:
    if folder.cancel.exists():
        return _cancelled(folder, ended.at)
    if ended.why:
        return _lost(folder, f"Its lease ended while it ran: {ended.why}", ended.at)
    cause = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    why = f"The step driver ended with {cause} and left no result; see {folder.logs}/driver.log"
    return _lost(folder, why, ended.at)


def _cancelled(folder: StepFolder, at: float) -> StepResult:
    reason = folder.cancel.read_text(errors="replace")
    failure = Failure(failure_class=FailureClass.CANCELLED, error="", message=reason)
    return _ended(folder, StepState.CANCELLED, failure, at)


def _lost(folder: StepFolder, why: str, at: float) -> StepResult:
    failure = Failure(failure_class=FailureClass.LOST, error="", message=why)
    return _ended(folder, StepState.LOST, failure, at)


def _ended(folder: StepFolder, state: StepState, failure: Failure, at: float) -> StepResult:
    seen = read_record(folder.status, StepStatus)
    started_at = at if seen is None else seen.updated_at - seen.elapsed_s
    return StepResult(state=state, failure=failure, started_at=started_at, finished_at=at)
