"""How a run, its steps and its leases stand, from ledger and folders; reads only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from headrace.clusters import lease_client
from headrace.clusters.lease_state import sure_state
from headrace.errors import StepError
from headrace.files.layout import LeaseFolder, StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, RunRecord
from headrace.record import Record
from headrace.runs.bad_nodes import bad_nodes
from headrace.runs.causes import why_no_lease
from headrace.runs.costs import Cost, run_cost
from headrace.runs.flow import PlannedStep, steps_of
from headrace.runs.foresight import Ahead, ahead_of
from headrace.runs.leases import lost_nodes
from headrace.runs.provenance import owner_is_gone, owner_process, read_provenance
from headrace.runs.runs import Run, open_run
from headrace.runs.settling import why_no_room
from headrace.runs.steps import ended_of
from headrace.states import EndedJob, FailureClass, LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.history import Use, newest_use
from headrace.steps.mailbox import StepResult, StepStatus
from headrace.steps.retry_policy import num_failures


@dataclass(frozen=True, kw_only=True)
class LeaseLook:
    """How a lease stands."""

    state: LeaseState
    dashboard_url: str
    why: str
    """Why it ended; empty while it lives."""
    waits_for: str = ""
    """What it waits for in a queue; empty when it does not wait, or there is no queue."""
    is_refused: bool = False
    """Whether its batch system will never start it: asking again is vain."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a step and its lease stand."""

    final: bool
    """Whether the step has ended, or its lease has and so it never will."""
    status: StepStatus
    lease: LeaseLook


def look_lease(folder: LeaseFolder, lost_after_s: float, *, twice: bool = False) -> LeaseLook:
    """See how a lease stands; reads files, and asks the queue when the site's board is too old.

    Args:
        folder: The lease.
        lost_after_s: Seconds without a heartbeat after which it counts as lost.
        twice: Look a second time at a silent one, which takes some seconds; see `sure_state`.
    """
    info = lease_client.info(folder)
    state = (sure_state if twice else lease_client.state)(folder, lost_after_s)
    return LeaseLook(
        state=state,
        dashboard_url=info.dashboard_url if info else "",
        why="" if state.is_active else lease_client.why_ended(folder),
        waits_for=lease_client.waiting_for(folder) if state.is_active else "",
        is_refused=state is LeaseState.FAILED and lease_client.is_refused(folder),
    )


def look(lease: LeaseFolder, step: StepFolder, lost_after_s: float) -> Look:
    """See how a step and its lease stand."""
    seen = look_lease(lease, lost_after_s)
    final = mailbox.outcome(step) is not None or not seen.state.is_active
    return Look(final=final, status=mailbox.status(step), lease=seen)


class StepView(Record):
    """How one step of a run stands."""

    name: str
    state: StepState | None
    """None: not yet begun."""
    attempt: int = 0
    status: StepStatus | None = None
    elapsed_s: float | None = None
    message: str = ""
    failure_class: FailureClass | None = None
    """Why it failed; decides whether it was tried again."""
    where: str = ""
    """Rank, worker or node it failed on, when known."""
    trace: str = ""
    """Trace of user code that raised, or of a fault of headrace."""
    folder: str = ""
    """The step's folder; empty before it is submitted."""
    outputs: dict[str, JsonValue] = {}
    restarts: tuple[str, ...] = ()
    """Why its processes were started again within the newest attempt, each time."""
    damage: str = ""
    """Why no more is known: a file of the step cannot be read; else empty."""
    failures: int = 0
    """Attempts in a row that have failed and came no further than those before."""
    kept: float = 0.0
    """How much of the work of ended attempts the newest one need not do again."""
    last_failure: str = ""
    """Why the last of `failures` has failed, in a line."""


class RunView(Record):
    """How a run stands."""

    run_id: str
    recipe: str
    site: str
    state: StepState
    owner: str
    elapsed_s: float
    folder: str
    asked: tuple[str, ...] = ()
    """Words after `headrace` that ask for the same again; empty for a run of Airflow."""
    changed: tuple[str, ...] = ()
    """When it went on with changes, and with which."""
    images: dict[str, str] = {}
    """Digests of the images of its containers when it began, by path."""
    dashboard_url: str = ""
    """Of the newest lease that is open and ready."""
    dashboard_lease: str = ""
    """That lease."""
    owner_is_gone: bool = False
    """Whether nobody goes on with it: its process, on this machine, has ended before the run."""
    waits_for: str = ""
    """Why its next step does not begin: who has the leases of a site that has no more to give, or
    what nodes of its lease wait for in a queue, also where others are there."""
    expected_start: float | None = None
    """When those nodes are expected, seconds since the epoch; null when nobody tells."""
    has_lease: bool = False
    """Whether there is a lease for that step, so that what it waits for is nodes."""
    without: tuple[str, ...] = ()
    """Nodes that its leases, or jobs of them, failed on, and that further jobs do without."""
    suspects: tuple[str, ...] = ()
    """Such nodes where its batch system cannot leave any out."""
    why: str = ""
    """Why it failed where none of its steps tells: it got no lease."""
    lost_nodes: tuple[EndedJob, ...] = ()
    """Jobs of its pools that came to an early end, and why, the newest last."""
    cost: Cost | None = None
    """What its machines have cost so far; null where nobody counts them."""
    ahead: Ahead | None = None
    """What it was expected to take, and what is to come; null where nobody wrote that down."""
    use: Use = Use()
    """How busy the nodes and ranks of a training under way are."""
    damage: str = ""
    """Why no more is known: a file of the run or of a lease cannot be read; else empty."""
    steps: tuple[StepView, ...]


def overview(run_id: str) -> RunView:
    """How a run stands now, as far as its files can be read.

    Raises:
        UnknownNameError: There is no such run.
    """
    record = open_ledger().run(run_id)
    leases = open_ledger().leases(run_id=run_id)
    attempts = open_ledger().attempts(run_id)
    known = _by_ledger(record, leases, attempts)
    try:
        run = open_run(run_id)
    except StepError as error:
        return known.model_copy(update={"damage": f"{error.what} {error.hint}"})
    planned = steps_of(run.recipe, run.request.kind)
    begun = {step.name: step for step in known.steps}
    steps = tuple(begun.get(each.name, StepView(name=each.name, state=None)) for each in planned)
    trains = any(each.name == "train" and each.state is StepState.RUNNING for each in steps)
    use = newest_use(run.folder) if trains else Use()
    asked = () if owner_process(run.request.owner) is None else run.request.words
    changed = tuple(each.words for each in run.request.resumed)
    told = {"asked": asked, "changed": changed, "images": read_provenance(run.folder).images}
    known = known.model_copy(update={**told, "steps": steps, "use": use})
    is_watched = not record.state.is_final and not known.owner_is_gone
    try:
        known = known.model_copy(update={"ahead": ahead_of(run.folder, steps, goes_on=is_watched)})
        waits = _waits(run, planned, known, leases) if is_watched else {}
        return known.model_copy(update={"lost_nodes": lost_nodes(run, leases), **waits})
    except StepError as error:
        damage = f"{error.what} Remove it: it only tells how the run's machines stand."
        return known.model_copy(update={"damage": damage})


def _by_ledger(
    record: RunRecord, leases: Sequence[LeaseRecord], attempts: Sequence[AttemptRecord]
) -> RunView:
    newest = {row.step: row for row in attempts}.values()
    open_leases = [row for row in leases if row.state.is_active]
    folders = {row.lease_id: LeaseFolder(Path(row.folder)) for row in leases}
    shown = next((row for row in open_leases if row.dashboard_url), None)
    return RunView(
        run_id=record.run_id,
        recipe=record.recipe_name,
        site=record.site_name,
        state=record.state,
        owner=record.owner,
        elapsed_s=(record.finished_at or time.time()) - record.created_at,
        folder=record.folder,
        dashboard_url=shown.dashboard_url if shown else "",
        dashboard_lease=shown.lease_id if shown else "",
        owner_is_gone=not record.state.is_final and owner_is_gone(record.owner),
        has_lease=bool(open_leases),
        why=why_no_lease(record, attempts, leases),
        cost=run_cost(record.run_id),
        steps=tuple(
            with_failures(step_view(row, folders[row.lease_id]), attempts) for row in newest
        ),
    )


def _waits(
    run: Run, planned: Sequence[PlannedStep], known: RunView, leases: Sequence[LeaseRecord]
) -> dict[str, object]:
    """What a run that goes on waits for, and which nodes it does without."""
    open_leases = [row for row in leases if row.state.is_active]
    no_room = _no_room(run, planned, known, open_leases)
    folders = (run.lease_folder(row.lease_id) for row in open_leases)
    queued = (lease_client.wait_of(folder, for_more=True) for folder in folders)
    wait = next((each for each in queued if each.why), lease_client.Wait())
    bad = bad_nodes(run, leases)
    leaves_out = any(run.site.roles[step.role].leaves_nodes_out for step in planned)
    return {
        "waits_for": no_room or wait.why,
        "expected_start": None if no_room else wait.starts_at,
        "has_lease": bool(open_leases) and not no_room,
        "without": bad if leaves_out else (),
        "suspects": () if leaves_out else bad,
    }


def _no_room(
    run: Run, planned: Sequence[PlannedStep], known: RunView, open_leases: Sequence[LeaseRecord]
) -> str:
    """Why there is no lease for the first step that has yet to succeed; empty when there is one."""
    done = {step.name for step in known.steps if step.state is StepState.SUCCEEDED}
    step = next((step for step in planned if step.name not in done), None)
    if step is None or step.role in {row.role for row in open_leases}:
        return ""
    return why_no_room(run)


def step_view(attempt: AttemptRecord, lease: LeaseFolder) -> StepView:
    """How the step of an attempt stands, by its row and its files."""
    folder = None if attempt.number is None else lease.step(attempt.number)
    status, result, damage = None, None, ""
    try:
        status = mailbox.status(folder) if folder else None
        result = mailbox.outcome(folder) if folder else None
    except StepError as error:  # the ledger knows the rest
        damage = error.what
    failure = result.failure if result else None
    return StepView(
        name=attempt.step,
        state=attempt.state if damage else _state(attempt, status, result),
        attempt=attempt.attempt,
        status=status,
        elapsed_s=_elapsed_s(attempt, status, result),
        message=attempt.message or (failure.message if failure else ""),
        failure_class=attempt.failure_class or (failure.failure_class if failure else None),
        where=failure.where if failure else "",
        trace=failure.trace if failure else "",
        folder=str(folder.path) if folder else "",
        outputs=dict(attempt.outputs or (result.outputs if result else {})),
        restarts=status.restarts if status else (),
        damage=damage,
    )


def with_failures(view: StepView, attempts: Sequence[AttemptRecord]) -> StepView:
    """The step with what became of its attempts so far, given those of its run."""
    of_step = [row for row in attempts if row.step == view.name and row.state.is_final]
    failed = [row for row in of_step if row.state is not StepState.SUCCEEDED]
    if view.state is StepState.SUCCEEDED or not failed:
        return view
    ended = [ended_of(row) for row in failed]
    told = {
        "failures": num_failures(ended),
        "kept": max(each.kept for each in ended),
        "last_failure": failed[-1].message.partition("\n")[0],
    }
    return view.model_copy(update=told)


def _state(
    attempt: AttemptRecord, status: StepStatus | None, result: StepResult | None
) -> StepState:
    if attempt.state.is_final:
        return attempt.state
    if result is not None:
        return result.state
    return status.state if status else StepState.QUEUED


def _elapsed_s(
    attempt: AttemptRecord, status: StepStatus | None, result: StepResult | None
) -> float | None:
    if result is not None:
        return result.finished_at - result.started_at
    if attempt.started_at is not None and attempt.finished_at is not None:
        return attempt.finished_at - attempt.started_at
    return status.elapsed_s if status else None


def step_folders(run: Run, step: str | None = None) -> list[tuple[AttemptRecord, Path]]:
    """Folders of the attempts at one step or at all steps of a run, in the order they were made."""
    return [
        (row, run.lease_folder(row.lease_id).step(row.number).path)
        for row in open_ledger().attempts(run.run_id, step)
        if row.number is not None
    ]
