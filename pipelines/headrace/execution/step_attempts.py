"""Steps of a run: observe them and act as decided; find, collect, re-attach, then submit."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from pydantic import JsonValue

from headrace import errors
from headrace.checkpoints import files as checkpoints
from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles, sure_state
from headrace.clusters.lease_records import LeaseSpec
from headrace.execution import decisions
from headrace.execution.decisions import Action, End, Memory, RunningAttempt, Situation, Submit
from headrace.files.atomic import is_there, read_record, refresh_directory
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord
from headrace.runs.names import named
from headrace.runs.parts import PART
from headrace.runs.planned_steps import PlannedStep, roles_after, step_of, steps_of
from headrace.runs.resolve import check_packed
from headrace.runs.runs import Run, outputs_of
from headrace.runs.suites import has_more_to_do
from headrace.states import FailureClass, StepState
from headrace.status.lease import look, why_not_the_nodes
from headrace.steps import mailbox
from headrace.steps.mailbox import StepResult, StepSpec
from headrace.steps.node_facts import software
from headrace.steps.retry_policy import ERROR, PROGRESS, TOTAL

logger = logging.getLogger(__name__)

_OVER = "its time is over"
_OVER_ERRORS = (errors.LeaseEndsError.__name__, errors.LeaseTakenError.__name__)
_NEVER_SUBMITTED = "It was never submitted: its lease, or the process that requested it, had ended"


def remembered(run: Run, step: str) -> Memory:
    """Return the memory of a driver that begins: attempts that have ended do not count."""
    rows = open_ledger().attempts(run.run_id, step)
    return Memory(num_before=sum(row.state.is_final for row in rows))


def observe(run: Run, step: PlannedStep, memory: Memory) -> Situation:
    """Read what the next decision needs of ledger, lease and mailbox.

    While an attempt is followed, no ledger is asked: this is called a few times a second.
    """
    known, result = Situation(policy=run.recipe.retry), memory.result
    if memory.error is not None or (result is not None and result.state is StepState.SUCCEEDED):
        return known
    if memory.ticket is not None:
        return _with_look(run, known, memory.ticket)
    rows = open_ledger().attempts(run.run_id, step.name)
    if not rows:
        return known
    known = replace(known, attempts=sorted(rows, key=lambda row: row.attempt))
    newest = known.attempts[-1]
    if memory.is_ending:
        return known
    if result is not None:
        timeout_s = run.recipe.train.timeout if newest.kind == "train" else None
        return replace(known, timeout_s=timeout_s, can_grow=_can_grow(run, newest.lease_id))
    if newest.state is StepState.SUCCEEDED:
        more = has_more_to_do(run.folder, newest.kind) or _is_missed(run, newest)
        return replace(known, has_more_to_do=more)
    if newest.state.is_final:
        return known
    folder = mailbox.find(run.lease_folder(newest.lease_id), newest.key)
    if folder is None:
        return replace(known, is_open=run_leases.current(run, step.role) == newest.lease_id)
    ticket = RunningAttempt(step=newest.step, attempt=newest.attempt, folder=folder)
    return _with_look(run, known, ticket)


def _with_look(run: Run, known: Situation, ticket: RunningAttempt) -> Situation:
    now = look(ticket.lease, ticket.folder, run.site.limits.lost_after)
    return replace(known, ticket=ticket, look=now)


def act(run: Run, step: PlannedStep, action: Action, memory: Memory) -> Memory:
    """Do what was decided; return what is remembered then, with the error if it was not possible.

    An attempt is in the ledger before it is in a mailbox, under a key that gives one step however
    often it is submitted: a process that is killed in between, or does it twice, changes nothing.
    """
    try:
        match action:
            case decisions.Attach(ticket=ticket, is_ready=is_ready):
                if is_ready:
                    run_leases.note_ready(run, ticket.lease.lease_id)
                return replace(memory, ticket=ticket, is_ready=is_ready)
            case Submit():
                return replace(memory, ticket=_submit(run, step, action), is_ready=False)
            case decisions.WriteOff(row=row):
                write_off(run.lease_folder(row.lease_id), row)
            case decisions.Collect(ticket=ticket):
                result = collect(run, ticket)
                is_kept = action.counts or result.state is StepState.SUCCEEDED
                return replace(memory, ticket=None, result=result if is_kept else None)
            case decisions.Wait(then=then):
                return then
    except (errors.CapacityError, errors.LeaseError) as error:
        return replace(memory, error=error)
    except errors.StepNotEndedError as error:  # it is followed from now on
        return replace(memory, ticket=ticket, error=error)
    return memory


def conclude(run: Run, step: PlannedStep, end: End) -> StepResult:
    """Return the outcome of a step, and record why it is not tried again; raise if it has none."""
    if isinstance(end.cause, errors.HeadraceError):
        raise end.cause
    if end.explained is not None:
        open_ledger().explain_attempt(run.run_id, step.name, end.explained, end.why)
    return end.cause


def collect(run: Run, ticket: RunningAttempt) -> StepResult:
    """Write the outcome of an attempt to the ledger and return it.

    Packing fails here if the rest of the run cannot use its dataset.

    Raises:
        StepNotEndedError: It is still running: its lease was presumed lost, but has heartbeats.
    """
    result = mailbox.outcome(ticket.folder)
    if result is None or result.state is StepState.LOST:
        result = _explained(run, ticket, result)
    kind = step_of(run.recipe, run.request.kind, ticket.step).kind
    if kind == "pack" and result.state is StepState.SUCCEEDED:
        result = check_packed(run, result)
    if result.state is not StepState.SUCCEEDED:
        kept = _kept(run, kind, ticket.folder)
        error = {ERROR: result.failure.error if result.failure else ""}
        result = result.model_copy(update={"outputs": {**result.outputs, **kept, **error}})
        if result.failure is not None and result.failure.error in _OVER_ERRORS:
            # the next attempt must not get what is left of it
            lease_client.request_close(ticket.lease, _OVER)
    record_outcome(run.run_id, ticket.step, ticket.attempt, result)
    return result


def _can_grow(run: Run, lease_id: str) -> bool:
    """Whether the next lease gets more time than this one had; one of a pool does not."""
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
        return {PROGRESS: kept, TOTAL: progress.total}
    return {PROGRESS: progress.done if kind in ("pack", "suite", "sites") else 0.0}


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
        raise errors.StepNotEndedError(f"Step {ticket.step} of run {run.run_id} has not ended yet")
    cause = lease_client.cause(lease)
    lease_client.end(lease)
    refresh_directory(folder.path)
    result = mailbox.outcome(folder) or mailbox.lost(folder, LeaseFiles.read(lease).why_ended)
    if result.state is not StepState.LOST:
        return result
    plain = result.model_copy(update={"failure": None})
    if mistake := why_not_the_nodes(run, lease.lease_id):
        return mailbox.blamed(plain, mistake, FailureClass.USER_ERROR)
    if cause is None:
        return result
    known = plain if mailbox.was_killed(folder) else result  # the queue says more than a signal
    return mailbox.blamed(known, cause.why, cause.failure_class)


def record_outcome(run_id: str, step: str, attempt: int, result: StepResult) -> None:
    """Write the end of an attempt to the ledger."""
    open_ledger().set_attempt(run_id, step, attempt, **result.columns)


def write_off(lease: LeaseFolder, row: AttemptRecord) -> None:
    """Record the end of an attempt whose lease has ended, by what it has left there."""
    folder = mailbox.find(lease, row.key)
    if folder is None:
        record_lost(row)
        return
    result = mailbox.outcome(folder) or mailbox.lost(folder, LeaseFiles.read(lease).why_ended)
    record_outcome(row.run_id, row.step, row.attempt, result)


def record_lost(attempt: AttemptRecord, why: str = _NEVER_SUBMITTED) -> None:
    """Record as lost an attempt that is in no mailbox."""
    open_ledger().set_attempt(
        attempt.run_id,
        attempt.step,
        attempt.attempt,
        state=StepState.LOST,
        failure_class=FailureClass.LOST,
        message=why,
        finished_at=time.time(),
    )


def _is_missed(run: Run, packed: AttemptRecord) -> bool:
    """Whether the dataset that an attempt packed is gone or damaged, and a later step needs it."""
    done = outputs_of(run.run_id)
    is_over = all(step.name in done for step in steps_of(run.recipe, run.request.kind))
    if packed.kind != "pack" or is_over or "dataset" not in packed.outputs:
        return False
    from headrace.packing.target import packed_dataset  # it imports numpy and xxhash

    try:
        packed_dataset(str(packed.outputs["dataset"]), run.site.s3)
    except errors.DataError as error:
        logger.warning("Step %s begins anew: %s", packed.step, error.what)
        return True
    return False


def _submit(run: Run, step: PlannedStep, action: Submit) -> RunningAttempt:
    """Enter an attempt and submit it; one that is entered is only submitted."""
    inputs = _inputs(run, step)  # before an attempt is entered: the step may lack them
    if action.row is not None:
        return _put(run, action.row, inputs)
    ahead = roles_after(run.recipe, run.request.kind, step)
    lease_id = run_leases.acquire(run, step.role, ahead)
    record = AttemptRecord(
        run_id=run.run_id,
        step=step.name,
        kind=step.kind,
        attempt=action.attempt,
        key=f"{run.run_id}/{step.name}/{action.attempt}",
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
    return RunningAttempt(step=record.step, attempt=record.attempt, folder=folder)


def _inputs(run: Run, planned: PlannedStep) -> dict[str, JsonValue]:
    """What a step is given: by earlier ones of the run, or of the run that it evaluates."""
    request = run.request
    if request.options is not None:
        return {"nodes": run.recipe.train.nodes, "options": request.options}
    if not request.of:
        shared = {"software": software()} if request.kind == PART else {}
        return {**planned.inputs(outputs_of(run.run_id)), **shared}
    found = named(request.of).at_site
    watched = {"watched": str(found.folder.path)} if request.watch else {}
    return {**planned.inputs(outputs_of(found.record.run_id)), **watched}
