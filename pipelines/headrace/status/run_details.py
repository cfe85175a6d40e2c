"""Details of one run: its steps, what it waits for, the load of its nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from headrace.clusters.lease_files import LeaseFiles, QueueWait
from headrace.errors import StepError
from headrace.files.layout import RunFolder
from headrace.informing import LeftOutSum, failures_of
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.runs.owners import owner_process
from headrace.runs.planned_steps import PlannedStep, steps_of
from headrace.runs.prediction import Ahead
from headrace.runs.provenance import read_provenance
from headrace.runs.runs import Run, open_run
from headrace.states import EndedJob, StepState
from headrace.status.lease import bad_nodes, lost_nodes, why_no_room
from headrace.status.run import RunRows, RunView, ahead_of, by_ledger, under_way
from headrace.status.step import StepView
from headrace.status.traces import Trace, traces_of
from headrace.steps.history import NodeLoad, newest_use


class RunDetails(RunView):
    """A run with its steps, and what it waits for."""

    asked: tuple[str, ...] = ()
    """Arguments of `headrace` that request the same again; empty for a run of Airflow."""
    changed: tuple[str, ...] = ()
    """When the run was resumed with changes, and with which."""
    images: dict[str, str] = {}
    """Digests of its container images at its beginning, by path."""
    dashboard_url: str = ""
    """Secret link of the Dask dashboard of the newest lease that is open and ready; never on a
    page."""
    dashboard_lease: str = ""
    """The lease of that dashboard."""
    waits_for: str = ""
    """Why its next step does not begin: the users of a site without room, or what nodes of its
    lease wait for in a queue, also if other nodes are ready."""
    expected_start: float | None = None
    """When those nodes are expected, seconds since the epoch; null if unknown."""
    has_lease: bool = False
    """Whether that step has a lease, so that the run waits for nodes."""
    without: tuple[str, ...] = ()
    """Nodes that its leases, or their jobs, failed on; further jobs avoid them."""
    suspects: tuple[str, ...] = ()
    """The same nodes, if its batch system cannot exclude any."""
    lost_nodes: tuple[EndedJob, ...] = ()
    """Jobs of its pools that ended early, and why, the newest last."""
    informing: LeftOutSum = LeftOutSum()
    """Failures of parts that only inform: forecast, accounting, provenance, progress."""
    ahead: Ahead | None = None
    """Its prediction, and what is left of it; null without a prediction."""
    traces: tuple[Trace, ...] = ()
    """Profiles and traces in its folder."""
    use: NodeLoad = NodeLoad()
    """NodeLoad of the nodes and ranks of the current training."""
    steps: tuple[StepView, ...]


def run_details(run_id: str) -> RunDetails:
    """Return the current state of a run or trial, as far as its files can be read.

    Raises:
        UnknownNameError: No run or trial has that name.
    """
    with open_ledger().snapshot():
        return details_of(RunRows.named(run_id))


def details_of(rows: RunRows) -> RunDetails:
    """Return the current state of a run, given its rows of the ledger."""
    leases, begun, folder = rows.leases, rows.steps(whole=True), RunFolder(Path(rows.run.folder))
    row = by_ledger(rows, time.time())
    if not row.state.is_final:
        row = row.model_copy(update=under_way(row, begun))
    trains = any(each.name == "train" and each.state is StepState.RUNNING for each in begun)
    shown = next((each for each in leases if each.state.is_active and each.dashboard_url), None)
    known = RunDetails(
        **dict(row),
        dashboard_url=shown.dashboard_url if shown else "",
        dashboard_lease=shown.lease_id if shown else "",
        has_lease=any(each.state.is_active for each in leases),
        steps=begun,
        use=newest_use(folder) if trains else NodeLoad(),
        traces=traces_of(folder),
    )
    if rows.trial is not None:
        return known
    try:
        run = open_run(row.run_id)
    except StepError as error:
        return known.model_copy(update={"damage": f"{error.what}. {error.hint}"})
    planned, by_name = steps_of(run.recipe, run.request.kind), {step.name: step for step in begun}
    steps = tuple(by_name.get(each.name, StepView(name=each.name, state=None)) for each in planned)
    details: dict[str, object] = {
        "steps": steps,
        "asked": () if owner_process(run.request.owner) is None else run.request.words,
        "informing": failures_of(run.folder),
        "changed": tuple(each.words for each in run.request.resumed),
        "images": read_provenance(run.folder).images,
    }
    known = known.model_copy(update=details)
    try:
        ahead = ahead_of(run.folder, steps, goes_on=known.goes_on and not known.paused)
        eta = {"ahead": ahead, "eta_s": ahead.eta_s if ahead else None}
        known = known.model_copy(update=eta)
        waits = _waits(run, planned, known, leases) if known.goes_on else {}
        return known.model_copy(update={"lost_nodes": _lost_nodes(run, leases), **waits})
    except StepError as error:
        damage = f"{error.what} Remove it: it holds only the state of the run's machines."
        return known.model_copy(update={"damage": damage})


def _lost_nodes(run: Run, leases: Sequence[LeaseRecord]) -> tuple[EndedJob, ...]:
    """Return jobs of the run's pools that ended early, the newest last."""
    found = [
        node
        for each in leases
        for node in each.lost_nodes or lost_nodes(run.lease_folder(each.lease_id))
    ]
    return tuple(sorted(found, key=lambda each: each.at))


def _waits(
    run: Run, planned: Sequence[PlannedStep], known: RunDetails, leases: Sequence[LeaseRecord]
) -> dict[str, object]:
    """Return what a running run waits for, and which nodes it avoids."""
    open_leases = [row for row in leases if row.state.is_active]
    done = {step.name for step in known.steps if step.state is StepState.SUCCEEDED}
    step = next((step for step in planned if step.name not in done), None)
    has_lease = step is None or step.role in {row.role for row in open_leases}
    no_room = "" if has_lease else why_no_room(run)
    folders = (run.lease_folder(row.lease_id) for row in open_leases)
    queued = (LeaseFiles.read(folder).wait(for_more=True) for folder in folders)
    wait = next((each for each in queued if each.why), QueueWait())
    bad = bad_nodes(run, leases)
    leaves_out = any(run.site.roles[step.role].leaves_nodes_out for step in planned)
    return {
        "waits_for": no_room or wait.why,
        "expected_start": None if no_room else wait.starts_at,
        "has_lease": bool(open_leases) and not no_room,
        "without": bad if leaves_out else (),
        "suspects": () if leaves_out else bad,
    }
