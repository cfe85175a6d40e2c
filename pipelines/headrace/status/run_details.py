"""What one run tells besides: its steps, waits, nodes, curves, checkpoints, and who did what."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.clusters import lease_client
from headrace.errors import StepError, UserError
from headrace.files.layout import RunFolder
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord, RunRecord
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.accounts import Ahead, accounts
from headrace.runs.audit import Actor, refused_requests
from headrace.runs.planned_steps import PlannedStep, steps_of
from headrace.runs.provenance import owner_process, read_provenance
from headrace.runs.runs import Run, open_run
from headrace.states import EndedJob, StepState
from headrace.status.lease import bad_nodes, lost_nodes, why_no_room
from headrace.status.logs import LogName, log_names, report_address
from headrace.status.run import Books, RunView, by_ledger, facts_of, run_views, under_way
from headrace.status.step import AttemptView, StepView, attempt_views
from headrace.status.training import (
    BestValue,
    CheckpointView,
    RunCurves,
    best_value,
    checkpoints_of,
    curves_of,
)
from headrace.steps.history import Load, newest_use, read_history

_MOST_ACTS = 200


class ActView(Record):
    """Somebody asked for something."""

    at: float
    """Seconds since the epoch."""
    user: str
    """Empty where only Airflow's audit log tells."""
    through: str
    run_id: str
    what: str
    details: str
    refused: str
    """Why it was not done; empty when it was."""


class RunsPage(Record):
    """Runs, the newest first."""

    now: float
    rows: tuple[RunView, ...]
    refused: tuple[ActView, ...] = ()
    """Requests in Airflow, no older than the rows, that got no run."""


class RunDetails(RunView):
    """A run with its steps, and what it waits for."""

    asked: tuple[str, ...] = ()
    """Words after `headrace` that ask for the same again; empty for a run of Airflow."""
    changed: tuple[str, ...] = ()
    """When it went on with changes, and with which."""
    images: dict[str, str] = {}
    """Digests of the images of its containers when it began, by path."""
    dashboard_url: str = ""
    """Secret link of the Dask dashboard of the newest lease that is open and ready; never on a
    page."""
    dashboard_lease: str = ""
    """That lease."""
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
    lost_nodes: tuple[EndedJob, ...] = ()
    """Jobs of its pools that came to an early end, and why, the newest last."""
    ahead: Ahead | None = None
    """What it was expected to take, and what is to come; null where nobody wrote that down."""
    use: Load = Load()
    """How busy the nodes and ranks of a training under way are."""
    steps: tuple[StepView, ...]


class RunPage(RunDetails):
    """All that the page of a run shows."""

    now: float
    can_act: bool
    """Whether who asks may act on it."""
    tensorboard: bool
    """Whether TensorBoard has anything to show."""
    best: BestValue | None
    throughput: float | None
    """Samples a second over all ranks."""
    data_wait: float | None
    """Share of the time in which training waits for data."""
    epoch: int | None
    """Epoch under way, from 0."""
    attempts: tuple[AttemptView, ...]
    curves: RunCurves
    checkpoints: tuple[CheckpointView, ...]
    logs: tuple[LogName, ...]
    report: str
    """Address of the report below that of the pages; empty without one."""
    acts: tuple[ActView, ...]
    rerun: str
    """Words that ask for the same once more."""


def runs_page(
    limit: int = 200,
    states: Sequence[StepState] = (),
    text: str = "",
    sites: Sites = None,
    asker: str = "",
) -> RunsPage:
    """The newest runs, those in some states or with a text in their id, recipe or site.

    Among those that failed are the requests of a user that were refused, or of all users.
    """
    records = open_ledger().runs(limit, states, text, sites=sites)
    since = records[-1].created_at if len(records) == limit else 0.0
    refused: tuple[ActView, ...] = ()
    if not states or StepState.FAILED in states:
        found = _acts(refused_requests(asker, limit, since))
        refused = tuple(act for act in found if text in f"{act.user} {act.details} {act.refused}")
    return RunsPage(now=time.time(), rows=run_views(records), refused=refused)


def run_details(run_id: str) -> RunDetails:
    """How a run stands now, as far as its files can be read.

    Raises:
        UnknownNameError: There is no such run.
    """
    with open_ledger().look():
        record = open_ledger().run(run_id)
        return _details(record, Books.of([record]))


def run_page(run_id: str, *, can_act: bool) -> RunPage:
    """All that is known of a run now.

    Raises:
        UnknownNameError: There is no such run.
    """
    record = open_ledger().run(run_id)
    books, facts = Books.of([record]), facts_of(record)
    attempts, leases = books.attempts_of(run_id), books.leases_of(run_id)
    folder = RunFolder(Path(record.folder))
    history = read_history(folder)
    last = next((each for each in reversed(history.told) if each.samples_per_s is not None), None)
    details = _details(record, books).model_copy(update={"dashboard_url": ""})
    return RunPage(
        **dict(details),
        now=time.time(),
        can_act=can_act,
        tensorboard=has_events(folder),
        best=best_value(history, facts.monitor, facts.monitor_mode),
        throughput=last.samples_per_s if last else None,
        data_wait=last.data_wait if last else None,
        epoch=history.told[-1].epoch if history.told else None,
        attempts=attempt_views(run_id, attempts),
        curves=curves_of(run_id, history),
        checkpoints=checkpoints_of(folder),
        logs=tuple(log_names(attempts, leases)),
        report=report_address(run_id, attempts),
        acts=acts_of(run_id),
        rerun=f"headrace rerun {run_id}",
    )


def has_events(run: RunFolder) -> bool:
    """Whether there is anything for TensorBoard to show."""
    return any(run.tensorboard.rglob("events.out.tfevents.*"))


def acts_of(run_id: str) -> tuple[ActView, ...]:
    """What was asked of a run, the newest first."""
    return _acts(open_ledger().acts(run_id=run_id, limit=_MOST_ACTS))


def check_refused(owner: str, user: str) -> None:
    """Say why a request of a DAG run, of one user or of any, got no run, if it was refused.

    Raises:
        UserError: So it was.
    """
    for row in open_ledger().acts(user, owner, limit=1, refused=True):
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row.created_at))
        asked = f"{Actor(row.user or 'somebody', row.through)} asked on {when} for: {row.details}"
        raise UserError(row.refused, f"{asked}. No run was made: trigger a new DAG run.")


def _acts(found: Iterable[ActRecord]) -> tuple[ActView, ...]:
    names = ("user", "through", "run_id", "what", "details", "refused")
    return tuple(
        ActView(at=row.created_at, **{name: getattr(row, name) for name in names}) for row in found
    )


def _details(record: RunRecord, books: Books) -> RunDetails:
    run_id, leases = record.run_id, books.leases_of(record.run_id)
    row = by_ledger(record, books, time.time())
    begun = books.steps(run_id, whole=True)
    if not record.state.is_final:
        row = row.model_copy(update=under_way(row, record, begun))
    shown = next((each for each in leases if each.state.is_active and each.dashboard_url), None)
    known = RunDetails(
        **dict(row),
        dashboard_url=shown.dashboard_url if shown else "",
        dashboard_lease=shown.lease_id if shown else "",
        has_lease=any(each.state.is_active for each in leases),
        steps=begun,
    )
    try:
        run = open_run(run_id)
    except StepError as error:
        return known.model_copy(update={"damage": f"{error.what} {error.hint}"})
    planned, by_name = steps_of(run.recipe, run.request.kind), {step.name: step for step in begun}
    steps = tuple(by_name.get(each.name, StepView(name=each.name, state=None)) for each in planned)
    trains = any(each.name == "train" and each.state is StepState.RUNNING for each in steps)
    told: dict[str, object] = {
        "steps": steps,
        "use": newest_use(run.folder) if trains else Load(),
        "asked": () if owner_process(run.request.owner) is None else run.request.words,
        "changed": tuple(each.words for each in run.request.resumed),
        "images": read_provenance(run.folder).images,
    }
    known = known.model_copy(update=told)
    try:
        ahead = accounts().ahead(run.folder, steps, goes_on=known.goes_on)
        eta = {"ahead": ahead, "eta_s": ahead.eta_s if ahead else None}
        known = known.model_copy(update=eta)
        waits = _waits(run, planned, known, leases) if known.goes_on else {}
        return known.model_copy(update={"lost_nodes": _lost_nodes(run, leases), **waits})
    except StepError as error:
        damage = f"{error.what} Remove it: it only tells how the run's machines stand."
        return known.model_copy(update={"damage": damage})


def _lost_nodes(run: Run, leases: Sequence[LeaseRecord]) -> tuple[EndedJob, ...]:
    """Jobs of the run's pools that came to an early end, the newest last."""
    found = [
        node
        for each in leases
        for node in each.lost_nodes or lost_nodes(run.lease_folder(each.lease_id))
    ]
    return tuple(sorted(found, key=lambda each: each.at))


def _waits(
    run: Run, planned: Sequence[PlannedStep], known: RunDetails, leases: Sequence[LeaseRecord]
) -> dict[str, object]:
    """What a run that goes on waits for, and which nodes it does without."""
    open_leases = [row for row in leases if row.state.is_active]
    done = {step.name for step in known.steps if step.state is StepState.SUCCEEDED}
    step = next((step for step in planned if step.name not in done), None)
    has_lease = step is None or step.role in {row.role for row in open_leases}
    no_room = "" if has_lease else why_no_room(run)
    folders = (run.lease_folder(row.lease_id) for row in open_leases)
    queued = (lease_client.wait_of(folder, for_more=True) for folder in folders)
    wait = next((each for each in queued if each.why), lease_client.QueueWait())
    bad = bad_nodes(run, leases)
    leaves_out = any(run.site.roles[step.role].leaves_nodes_out for step in planned)
    return {
        "waits_for": no_room or wait.why,
        "expected_start": None if no_room else wait.starts_at,
        "has_lease": bool(open_leases) and not no_room,
        "without": bad if leaves_out else (),
        "suspects": () if leaves_out else bad,
    }
