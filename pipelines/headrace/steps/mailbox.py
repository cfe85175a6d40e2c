"""The mailbox: numbered step folders by which the control side gives work to a lease."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import Field, JsonValue

from headrace.errors import DataError, LeaseLostError, StepError
from headrace.files.atomic import (
    is_there,
    publish_folder,
    read_record,
    read_text,
    write_marker,
    write_record,
)
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.files.private import make_private
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.record import Figures, Record
from headrace.states import FailureClass, StepState

_COLUMNS = ("state", "failure_class", "message", "started_at", "finished_at", "outputs")
_LOCK_TIMEOUT_S = 60.0
_FAULTS = (
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGXCPU,
)  # fmt: skip
"""Signals by which code ends its own process; batch systems send others, as before a time limit."""

_STATES = {
    FailureClass.PREEMPTED: StepState.PREEMPTED,
    FailureClass.TIMED_OUT: StepState.TIMED_OUT,
    FailureClass.USER_ERROR: StepState.FAILED,
    FailureClass.DATA_ERROR: StepState.FAILED,
    FailureClass.OUT_OF_MEMORY: StepState.FAILED,
}


class StepSpec(Record):
    """Input of one attempt at a step; immutable once in the mailbox."""

    key: str
    """Identity of the attempt, `<run_id>/<name>/<attempt>`: submitting it twice gives one step."""
    kind: str
    """Entry of the step registry: pack, stage, train, evaluate."""
    run_id: str
    name: str
    """Name of the step, unique in its run."""
    attempt: int = Field(ge=1)
    """Number of the attempt, from 1."""
    run_folder: str
    """Folder of the run, with the resolved recipe and site."""
    inputs: dict[str, JsonValue] = {}
    """Outputs of earlier steps: paths, numbers."""
    lease_folder: str = ""
    """Folder of the lease that runs the step; empty if the step's folder is in it."""
    timeout_s: float | None = None
    """The step ends as timed out after this many seconds; null for no limit."""


class Progress(Record):
    """Progress of a step."""

    done: float = 0
    total: float | None = None
    """Total units; null if not known yet."""
    unit: str = ""
    """Unit: samples, shards, steps, bytes."""
    phase: str = ""
    """Current activity, in a few words."""


class StepStatus(Figures):
    """Status of a step; replaced every second while it runs."""

    state: StepState
    progress: Progress = Progress()
    rate: float | None = None
    """Units per second, over the last half minute."""
    eta_s: float | None = None
    """Seconds until the end at that rate; null if unknown."""
    elapsed_s: float = 0.0
    """Seconds since the driver started."""
    metrics: dict[str, float] = {}
    """Newest values: loss, data_wait, samples_per_s, …"""
    restarts: tuple[str, ...] = ()
    """Reason of each restart of the step's processes within this attempt."""
    updated_at: float = Field(default_factory=time.time)
    """When this was written, seconds since the epoch."""


class Failure(Record):
    """Why a step failed."""

    failure_class: FailureClass
    """Decides whether the step is retried."""
    error: str
    message: str
    """What happened and what to do, for the user."""
    trace: str = ""
    """Trace of user code; empty for errors without a trace."""
    where: str = ""
    """Rank, worker or node of the failure, if known."""


class StepResult(Record):
    """Outcome of one attempt; written once, as the last file."""

    state: StepState
    failure: Failure | None = None
    outputs: dict[str, Any] = {}
    """What later steps and the report need, JSON values."""
    started_at: float
    """When the driver started, seconds since the epoch."""
    finished_at: float
    usage: AttemptUsage | None = None
    """Usage of its machines; null if not measured."""

    @property
    def columns(self) -> dict[str, Any]:
        """Values of the attempt's row in the ledger, by column."""
        values = {**dict(self), **dict(self.failure or ())}
        return {name: values[name] for name in _COLUMNS if name in values}


class DriverExit(Record):
    """End of the driver process, written by the lease's host."""

    code: int
    """Exit code; minus the signal number if a signal ended it."""
    at: float
    """Time of the end, seconds since the epoch."""
    why: str = ""
    """Why the lease ended, if that ended the driver; otherwise empty."""


def submit(lease: LeaseFolder, spec: StepSpec) -> StepFolder:
    """Put a step into the lease's mailbox, or find the existing one with its key.

    The folder appears complete and with the next free number: two writers at once, or one killed
    half way, leave no gap. Raises LeaseLostError if the lease has ended.
    """
    if is_there(lease.closed) or not is_there(lease.path):
        raise LeaseLostError(f"Lease {lease.lease_id} has ended; step {spec.key} was not submitted")
    make_private(lease.steps)
    with FileLock(lease.steps / ".lock", timeout=_LOCK_TIMEOUT_S):
        return find(lease, spec.key) or _publish(lease, spec)


def _publish(lease: LeaseFolder, spec: StepSpec) -> StepFolder:
    prepared = lease.steps / f".{uuid.uuid4().hex}"
    make_private(prepared)
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
    """Yield all steps of the lease in the order of their numbers."""
    number = 1
    while is_there(lease.step(number).path):
        yield lease.step(number)
        number += 1


def find(lease: LeaseFolder, key: str) -> StepFolder | None:
    """Return the step with this key; None if it was not submitted."""
    specs = ((folder, read_record(folder.spec, StepSpec)) for folder in submitted(lease))
    return next((folder for folder, spec in specs if spec and spec.key == key), None)


def request_cancel(folder: StepFolder, reason: str) -> None:
    """Ask a step to stop; no effect if it has ended."""
    if not is_there(folder.cancel):
        write_marker(folder.cancel, reason)


def status(folder: StepFolder) -> StepStatus:
    """Return a step's status; queued, with what it waits for, until its driver has written one."""
    return read_record(folder.status, StepStatus) or StepStatus(
        state=StepState.QUEUED, progress=Progress(phase=read_text(folder.waits) or "")
    )


def outcome(folder: StepFolder) -> StepResult | None:
    """Return a step's result, even if its driver died before; None while it may still end."""
    ended = read_record(folder.exit, DriverExit)  # first: the result is written before
    result = read_record(folder.result, StepResult)
    if result is not None or ended is None:
        return result
    found = lost(folder, _why_without_result(folder, ended), ended.at)
    fault = None if ended.why else fault_of(folder.reading, ended.code)
    if fault is None or found.state is not StepState.LOST:
        return found
    return blamed(found.model_copy(update={"failure": None}), str(fault), fault.failure_class)


def lost(folder: StepFolder, why: str, at: float | None = None) -> StepResult:
    """Return the result of a step that leaves none: cancelled if requested, otherwise lost."""
    at = time.time() if at is None else at
    state, failure_class = StepState.LOST, FailureClass.LOST
    if is_there(folder.cancel):
        state, failure_class = StepState.CANCELLED, FailureClass.CANCELLED
        why = folder.cancel.read_text(errors="replace")
    try:
        written = read_record(folder.status, StepStatus)
    except StepError:  # it is only needed for the begin of the step
        written = None
    return StepResult(
        state=state,
        failure=Failure(failure_class=failure_class, error="", message=why),
        started_at=at if written is None else written.updated_at - written.elapsed_s,
        finished_at=at,
    )


def blamed(lost: StepResult, why: str, failure_class: FailureClass) -> StepResult:
    """Return a lost step with the cause that became known, and its failure class.

    The cause is put before the known message, unless that begins with it.
    """
    known = lost.failure.message if lost.failure is not None else ""
    message = known if known.startswith(why) else "; ".join(filter(None, (why, known)))
    failure = Failure(failure_class=failure_class, error="", message=message)
    state = _STATES.get(failure_class, StepState.LOST)
    return lost.model_copy(update={"state": state, "failure": failure})


def fault_of(note: Path, code: int) -> DataError | None:
    """Return the error for the file, named in a note, at which a process ended; None for no file.

    `code` is its exit code, or minus the number of a signal.
    """
    name = (read_text(note) or "").partition("\0")[0]
    if not name or -code not in _FAULTS:
        return None
    return DataError(
        f"'{name}' is damaged, or what reads it has a fault: reading it ended the process "
        f"({signal.Signals(-code).name}: {signal.strsignal(-code)})",
        "Write it again, or leave it out: move it elsewhere, or narrow dataset.include.",
    )


def was_killed(folder: StepFolder) -> bool:
    """Whether a signal ended the step's driver, as at the end of its lease's job."""
    ended = read_record(folder.exit, DriverExit)
    return ended is not None and ended.code < 0


def _why_without_result(folder: StepFolder, ended: DriverExit) -> str:
    if ended.why:
        return f"Its lease ended while it ran: {ended.why}"
    cause = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    return f"The step driver ended with {cause} and left no result; see {folder.logs}/driver.log"
