"""Steps of a run: find, collect, re-attach, and only then submit."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from headrace.checkpoints import files as checkpoints
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles, sure_state
from headrace.clusters.lease_records import LeaseSpec
from headrace.errors import DataError, LeaseEndsError, LeaseTakenError, StepNotEndedError
from headrace.files.atomic import is_there, look_afresh, read_record
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.runs.fitted import judged
from headrace.runs.planned_steps import PlannedStep, step_of, steps_of
from headrace.runs.runs import Run, outputs_of
from headrace.runs.suites import has_more_to_do
from headrace.states import FailureClass, StepState
from headrace.status.lease import why_not_the_nodes
from headrace.status.step import ended_of
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepSpec
from headrace.steps.retry_policy import ERROR, KEPT, TOTAL, Decision, decide

logger = logging.getLogger(__name__)

_OVER = "its time is over"
_OVER_ERRORS = (LeaseEndsError.__name__, LeaseTakenError.__name__)
_NEVER_SUBMITTED = "It was never submitted: its lease, or the process that asked for it, had ended"


@dataclass(frozen=True, kw_only=True)
class RunningAttempt:
    """A running attempt: where to look for its end."""

    run_id: str
    step: str
    attempt: int
    lease_id: str
    lease_folder: str
    step_folder: str

    @property
    def lease(self) -> LeaseFolder:
        """Folder of the lease."""
        return LeaseFolder(Path(self.lease_folder))

    @property
    def folder(self) -> StepFolder:
        """Folder of the attempt in the lease's mailbox."""
        return StepFolder(Path(self.step_folder))


def start_step(run: Run, name: str, ahead: Collection[str] = ()) -> RunningAttempt | StepResult:
    """Bring a step of the run under way, whatever happened to it before.

    A succeeded attempt is collected, a running one is re-attached, a lost one is written off; only
    when there is none of these a new attempt is submitted, to the run's lease of the step's role;
    see `leases.acquire` for the roles `ahead`.

    Returns:
        The result of a succeeded attempt, or the ticket of the one that runs.

    Raises:
        CapacityError: A lease is needed and the site has no room for it.
    """
    planned = _planned(run, name)
    latest = open_ledger().latest_attempt(run.run_id, name)
    if latest is not None and (attached := _resume(run, latest)) is not None:
        return attached
    return _submit(run, planned, 1 if latest is None else latest.attempt + 1, ahead)


def collect(run: Run, ticket: RunningAttempt) -> StepResult:
    """Write the outcome of an attempt to the ledger and return it.

    Packing fails here when it gave a dataset that the rest of the run cannot be done with.

    Raises:
        StepNotEndedError: The attempt has not ended. It happens to one whose lease was taken for
            lost, when heartbeats come again.
    """
    result = mailbox.outcome(ticket.folder)
    if result is None or result.state is StepState.LOST:
        result = _explained(run, ticket, result)
    kind = _planned(run, ticket.step).kind
    if kind == "pack" and result.state is StepState.SUCCEEDED:
        result = judged(run, result)
    if result.state is not StepState.SUCCEEDED:
        kept = _kept(run, kind, ticket.folder)
        error = {ERROR: result.failure.error if result.failure else ""}
        result = result.model_copy(update={"outputs": {**result.outputs, **kept, **error}})
        if result.failure is not None and result.failure.error in _OVER_ERRORS:
            # the next attempt must not get what is left of it
            lease_client.request_close(ticket.lease, _OVER)
    record_outcome(run.run_id, ticket.step, ticket.attempt, result)
    return result


def conclude(
    run: Run, name: str, result: StepResult, *, num_before: int = 0
) -> tuple[Decision, StepResult]:
    """Decide whether a step that has failed is tried again, and write down why not.

    Its newest attempt is in the ledger already; the first `num_before` ones do not count, since
    somebody has asked anew after them.

    Returns:
        The decision, and the result with the reason for giving up, if there is one to tell.
    """
    attempts = open_ledger().attempts(run.run_id, name)[num_before:]
    is_training = bool(attempts) and attempts[-1].kind == "train"
    if result.failure is None or not attempts:
        return Decision(again=False), result
    timeout_s = run.recipe.train.timeout if is_training else None
    ended = [ended_of(each) for each in attempts]
    decision = decide(
        ended,
        run.recipe.retry,
        timeout_s=timeout_s,
        grows=_can_grow(run, attempts[-1].lease_id),
    )
    if not decision.why_not:
        return decision, result
    message = f"{result.failure.message}\n  {decision.why_not}"
    failure = result.failure.model_copy(update={"message": message})
    open_ledger().explain_attempt(run.run_id, name, attempts[-1].attempt, message)
    if decision.is_programs_fault:
        failure = failure.model_copy(update={"failure_class": FailureClass.USER_ERROR})
    return decision, result.model_copy(update={"failure": failure})


def _can_grow(run: Run, lease_id: str) -> bool:
    """Whether the run's next lease gets more time than this one, should this have been too short.

    A pool does not: it lasts as long as it may, only its nodes have a chosen time.
    """
    spec = read_record(run.lease_folder(lease_id).spec, LeaseSpec)
    if spec is None or spec.walltime is None or spec.role.kind == "pool":
        return False
    return spec.walltime.seconds < spec.walltime.most_s


def _kept(run: Run, kind: str, folder: StepFolder) -> dict[str, float | None]:
    """How much of a failed attempt's work the next one need not do again, and of how much."""
    progress = mailbox.status(folder).progress
    if kind == "train":
        has_own = run.recipe.model is None
        kept = checkpoints.progress_in(run.folder.checkpoints, own_names=has_own)
        return {KEPT: kept, TOTAL: progress.total}
    return {KEPT: progress.done if kind in ("pack", "suite") else 0.0}


def _explained(run: Run, ticket: RunningAttempt, result: StepResult | None) -> StepResult:
    """The outcome of a step that left none: its lease has ended, or only its driver."""
    lease, folder = ticket.lease, ticket.folder
    if is_there(lease.job) and mailbox.was_killed(folder):
        # the job's end may be on its way
        lease_client.await_end(lease, 2 * run.site.limits.heartbeat)
    is_alive = sure_state(lease, run.site.limits.lost_after).is_active
    if is_alive and result is not None and not is_there(lease.close):
        return result
    if is_alive and result is None:
        raise StepNotEndedError(f"Step {ticket.step} of run {run.run_id} has not ended yet")
    cause = lease_client.cause(lease)
    lease_client.end(lease)
    look_afresh(folder.path)
    result = mailbox.outcome(folder) or mailbox.lost(folder, LeaseFiles.read(lease).why_ended)
    if result.state is not StepState.LOST:
        return result
    plain = result.model_copy(update={"failure": None})
    if mistake := why_not_the_nodes(run, ticket.lease_id):
        return mailbox.blamed(plain, mistake, FailureClass.USER_ERROR)
    if cause is None:
        return result
    known = plain if mailbox.was_killed(folder) else result  # the queue says more than a signal
    return mailbox.blamed(known, cause.why, cause.failure_class)


def cancel_step(run: Run, name: str, reason: str) -> bool:
    """Ask the running attempt of a step to stop; whether there was one."""
    latest = open_ledger().latest_attempt(run.run_id, name)
    if latest is None or latest.state.is_final or (ticket := _find(run, latest)) is None:
        return False
    mailbox.request_cancel(ticket.folder, reason)
    return True


def record_outcome(run_id: str, step: str, attempt: int, result: StepResult) -> None:
    """Write the end of an attempt to the ledger."""
    failure = result.failure
    open_ledger().set_attempt(
        run_id,
        step,
        attempt,
        state=result.state,
        failure_class=failure.failure_class if failure else None,
        message=failure.message if failure else None,
        started_at=result.started_at,
        finished_at=result.finished_at,
        outputs=result.outputs,
    )


def record_lost(attempt: AttemptRecord, why: str = _NEVER_SUBMITTED) -> None:
    """Write off an attempt of which no mailbox knows."""
    open_ledger().set_attempt(
        attempt.run_id,
        attempt.step,
        attempt.attempt,
        state=StepState.LOST,
        failure_class=FailureClass.LOST,
        message=why,
        finished_at=time.time(),
    )


def _resume(run: Run, latest: AttemptRecord) -> RunningAttempt | StepResult | None:
    begins = has_more_to_do(run.folder, latest.kind) or _is_missed(run, latest)
    if latest.state is StepState.SUCCEEDED and not begins:
        return StepResult(
            state=latest.state,
            outputs=dict(latest.outputs),
            started_at=latest.started_at or latest.created_at,
            finished_at=latest.finished_at or latest.created_at,
        )
    if latest.state.is_final:
        return None
    ticket = _find(run, latest)
    if ticket is None:
        return _resubmit(run, latest)
    lease = LeaseFiles.read(ticket.lease).state(run.site.limits.lost_after)
    if mailbox.outcome(ticket.folder) is None and lease.is_active:
        return ticket  # also when it is being cancelled: the caller sees its end and asks again
    try:
        result = collect(run, ticket)
    except StepNotEndedError:
        return ticket
    return result if result.state is StepState.SUCCEEDED else None


def _is_missed(run: Run, packed: AttemptRecord) -> bool:
    """Whether the dataset that an attempt packed is gone or damaged, and a later step needs it."""
    done = outputs_of(run.run_id)
    is_over = all(step.name in done for step in steps_of(run.recipe, run.request.kind))
    if packed.kind != "pack" or is_over or "dataset" not in packed.outputs:
        return False
    from headrace.packing.target import packed_dataset  # it imports numpy and xxhash

    try:
        packed_dataset(str(packed.outputs["dataset"]), run.site.s3)
    except DataError as error:
        logger.warning("Step %s begins anew: %s", packed.step, error.what)
        return True
    return False


def _resubmit(run: Run, latest: AttemptRecord) -> RunningAttempt | None:
    """An attempt that is in the ledger but in no mailbox: the writer ended in between."""
    planned = _planned(run, latest.step)
    if run_leases.current(run, planned.role) == latest.lease_id:
        return _put(run, latest, _inputs(run, planned))
    record_lost(latest)
    return None


def _find(run: Run, attempt: AttemptRecord) -> RunningAttempt | None:
    lease = run.lease_folder(attempt.lease_id)
    folder = mailbox.find(lease, attempt.key)
    return None if folder is None else _ticket(attempt, lease, folder)


def _submit(run: Run, planned: PlannedStep, attempt: int, ahead: Collection[str]) -> RunningAttempt:
    inputs = _inputs(run, planned)  # of a step that lacks them no attempt is entered
    lease_id = run_leases.acquire(run, planned.role, ahead)
    record = AttemptRecord(
        run_id=run.run_id,
        step=planned.name,
        kind=planned.kind,
        attempt=attempt,
        key=f"{run.run_id}/{planned.name}/{attempt}",
        lease_id=lease_id,
        state=StepState.QUEUED,
        created_at=time.time(),
    )
    return _put(run, open_ledger().add_attempt(record), inputs)


def _put(run: Run, record: AttemptRecord, inputs: dict[str, JsonValue]) -> RunningAttempt:
    spec = StepSpec(
        key=record.key,
        kind=record.kind,
        run_id=run.run_id,
        name=record.step,
        attempt=record.attempt,
        run_folder=str(run.folder.path),
        inputs=inputs,
        timeout_s=run.recipe.train.timeout if record.kind == "train" else None,
    )
    lease = run.lease_folder(record.lease_id)
    folder = mailbox.submit(lease, spec)
    open_ledger().set_attempt(
        run.run_id, record.step, record.attempt, state=StepState.RUNNING, number=folder.number
    )
    return _ticket(record, lease, folder)


def _inputs(run: Run, planned: PlannedStep) -> dict[str, JsonValue]:
    """What a step is given: by earlier ones of the run, or of the run that it evaluates."""
    request = run.request
    if request.options is not None:
        return {"nodes": run.recipe.train.nodes, "options": request.options}
    if not request.of:
        return planned.inputs(outputs_of(run.run_id))
    watched = {"watched": open_ledger().run(request.of).folder} if request.watch else {}
    return {**planned.inputs(outputs_of(request.of)), **watched}


def _ticket(record: AttemptRecord, lease: LeaseFolder, folder: StepFolder) -> RunningAttempt:
    return RunningAttempt(
        run_id=record.run_id,
        step=record.step,
        attempt=record.attempt,
        lease_id=record.lease_id,
        lease_folder=str(lease.path),
        step_folder=str(folder.path),
    )


def _planned(run: Run, step: str) -> PlannedStep:
    return step_of(run.recipe, run.request.kind, step)
