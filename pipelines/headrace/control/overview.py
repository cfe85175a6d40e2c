"""How a run stands, put together from ledger and step folders; reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue

from headrace.control.blame import bad_nodes
from headrace.control.flow import PlannedStep, steps_of
from headrace.control.leases import lost_nodes
from headrace.control.ledgers import open_ledger
from headrace.control.owners import owner_is_gone, owner_process
from headrace.control.room import why_no_room
from headrace.control.runs import Run, open_run
from headrace.errors import StepError
from headrace.leases import client
from headrace.ledger.records import AttemptRecord, LeaseRecord, LostNode, RunRecord
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.records import StepResult, StepStatus
from headrace.storage.layout import LeaseFolder, StepFolder


class StepView(BaseModel):
    """How one step of a run stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class RunView(BaseModel):
    """How a run stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    recipe: str
    site: str
    state: StepState
    owner: str
    elapsed_s: float
    folder: str
    asked: tuple[str, ...] = ()
    """Words after `headrace` that ask for the same again; empty for a run of Airflow."""
    dashboard_url: str = ""
    """Of the newest lease that is open."""
    owner_is_gone: bool = False
    """Whether nobody goes on with it: its process, on this machine, has ended before the run."""
    waits_for: str = ""
    """Why its next step does not begin: who has the leases of a site that has no more to give, or
    what nodes of its lease wait for in a queue, also where others are there."""
    has_lease: bool = False
    """Whether there is a lease for that step, so that what it waits for is nodes."""
    without: tuple[str, ...] = ()
    """Nodes that its leases, or jobs of them, failed on, and that further jobs do without."""
    suspects: tuple[str, ...] = ()
    """Such nodes where its batch system cannot leave any out."""
    why: str = ""
    """Why it failed where none of its steps tells: it got no lease."""
    lost_nodes: tuple[LostNode, ...] = ()
    """Jobs of its pools that came to an early end, and why, the newest last."""
    steps: tuple[StepView, ...]


def overview(run_id: str) -> RunView:
    """How a run stands now.

    Raises:
        UnknownNameError: There is no such run.
    """
    run = open_run(run_id)
    record = open_ledger().run(run_id)
    end = record.finished_at or time.time()
    attempts = {row.step: row for row in open_ledger().attempts(run_id)}
    leases = open_ledger().leases(run_id=run_id)
    open_leases = [row for row in leases if row.state.is_active]
    planned = steps_of(run.recipe, run.request.kind)
    is_gone = not record.state.is_final and owner_is_gone(record.owner)
    goes_on = not record.state.is_final and not is_gone
    urls = [row.dashboard_url for row in open_leases if row.dashboard_url]
    waits = (client.lacks(run.lease_folder(row.lease_id)) for row in open_leases)
    queued = next((each for each in waits if each), "")
    no_room = _no_room(run, planned, attempts, open_leases)
    bad = bad_nodes(run, leases) if goes_on else ()
    leaves_out = any(run.site.roles[step.role].leaves_nodes_out for step in planned)
    return RunView(
        run_id=run_id,
        recipe=record.recipe_name,
        site=record.site_name,
        state=record.state,
        owner=record.owner,
        elapsed_s=end - record.created_at,
        folder=record.folder,
        asked=_asked(run),
        dashboard_url=urls[0] if urls else "",
        owner_is_gone=is_gone,
        waits_for=(no_room or queued) if goes_on else "",
        has_lease=bool(open_leases) and not no_room,
        without=bad if leaves_out else (),
        suspects=() if leaves_out else bad,
        why=why_no_lease(record),
        lost_nodes=lost_nodes(run, leases),
        steps=tuple(_step_view(run, step.name, attempts.get(step.name)) for step in planned),
    )


def _asked(run: Run) -> tuple[str, ...]:
    request = run.request
    if owner_process(request.owner) is None:
        return ()
    part = ("--pack-only",) if request.kind == "pack" else ()
    return ("run", request.recipe, *request.overrides, "--site", request.site, *part)


def _no_room(
    run: Run,
    planned: Sequence[PlannedStep],
    attempts: Mapping[str, AttemptRecord],
    open_leases: Sequence[LeaseRecord],
) -> str:
    """Why there is no lease for the first step that has yet to succeed; empty when there is one."""
    done = {name for name, row in attempts.items() if row.state is StepState.SUCCEEDED}
    step = next((step for step in planned if step.name not in done), None)
    if step is None or step.role in {row.role for row in open_leases}:
        return ""
    return why_no_room(run)


def _step_view(run: Run, name: str, attempt: AttemptRecord | None) -> StepView:
    if attempt is None:
        return StepView(name=name, state=None)
    folder = _folder(run, attempt)
    status, result, damage = None, None, ""
    try:
        status = mailbox.status(folder) if folder else None
        result = mailbox.outcome(folder) if folder else None
    except StepError as error:  # the ledger knows the rest
        damage = error.what
    failure = result.failure if result else None
    state = attempt.state if damage else _state(attempt, status, result)
    return StepView(
        name=name,
        state=state,
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


def _folder(run: Run, attempt: AttemptRecord) -> StepFolder | None:
    if attempt.number is None:
        return None
    return LeaseFolder(run.lease_folder(attempt.lease_id).path).step(attempt.number)


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


def why_failed(record: RunRecord) -> AttemptRecord | None:
    """The attempt by which a run ended without success; None when there is none."""
    if not record.state.is_final or record.state is StepState.SUCCEEDED:
        return None
    rows = open_ledger().attempts(record.run_id)
    last = rows[-1] if rows else None
    return None if last is None or last.state is StepState.SUCCEEDED else last


def why_no_lease(record: RunRecord) -> str:
    """Why a run failed that got no lease for its next step; empty when a step tells why."""
    has_failed = record.state.is_final and record.state is not StepState.SUCCEEDED
    if not has_failed or why_failed(record) is not None:
        return ""
    newest = open_ledger().leases(run_id=record.run_id, limit=1)
    return newest[0].why_ended if newest and newest[0].state is LeaseState.FAILED else ""


def newest_run_id() -> str | None:
    """Id of the run that was started last."""
    rows = open_ledger().runs(limit=1)
    return rows[0].run_id if rows else None


def step_folders(run: Run, step: str | None = None) -> list[tuple[AttemptRecord, Path]]:
    """Folders of the attempts of a run, in the order they were made.

    Args:
        run: The run.
        step: Only this step.
    """
    rows = open_ledger().attempts(run.run_id, step)
    folders = [(row, _folder(run, row)) for row in rows]
    return [(row, folder.path) for row, folder in folders if folder is not None]
