"""A whole job from this process, without Airflow: run it, or preview its leases."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from headrace.clusters import lease_machines
from headrace.clusters.lease_records import LeaseSpec, Walltime
from headrace.clusters.lifetime import leaving_s
from headrace.errors import CapacityError, StorageError, StorageFullError
from headrace.execution.decisions import End, Submit, Wait, decide
from headrace.execution.reap import end_run
from headrace.execution.step_attempts import act, conclude, observe, remembered
from headrace.execution.ticks import Tick, tolerating_ledger_errors, with_watch
from headrace.files.atomic import tolerating_storage
from headrace.files.layout import SiteFolder
from headrace.files.machine import storage_error
from headrace.informing import inform
from headrace.leases import run_leases
from headrace.recipe.gang_size import gang_size
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.unix_accounts import account
from headrace.record import Record
from headrace.runs.planned_steps import PlannedStep, is_last_on_lease, steps_of
from headrace.runs.planning import planner, predicted, walltime_of
from headrace.runs.prediction import Frontier, Prediction
from headrace.runs.resolve import resolve
from headrace.runs.runs import Run
from headrace.runs.site_machines import MostCost, most_cost
from headrace.runs.suite_sites import at_site, over_sites, suite_sites
from headrace.states import StepState
from headrace.steps.mailbox import StepResult

logger = logging.getLogger(__name__)

_RUN_ID = "RUN"
"""Stands for the id that a real run gets."""

_FIRST_POLL_S, _POLL_S, _POLL_GROWTH = 0.05, 0.25, 0.01
_RELEASE_S = 20.0
_STORAGE_PAUSE_S = 5.0
_JUDGES = "headrace.training.training_plan"
"""What `check_packed` imports, and with it numpy: better while the step is under way than after."""


def execute(run: Run, tick: Tick, *, waits_for_storage: bool = False) -> StepResult | None:
    """Run the steps of a job one after another, each on its lease; leases are released at the end.

    `tick` is called a few times a second while something is waited for; it may raise to stop. With
    `waits_for_storage` a folder that cannot be used, but is not full, is waited for.
    Returns the result of the step that failed, or None when all succeeded.

    Raises:
        LeaseError: No lease could be opened.
        StorageError: A folder that the run needs cannot be used.
    """
    try:
        watch = with_watch(run, tick)
        failed = _patiently(run, watch) if waits_for_storage else _steps(run, watch)
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt)
        state = StepState.CANCELLED if stopped else StepState.FAILED
        with tolerating_storage("The end of the run is not recorded"):
            end_run(run, state, "interrupted" if stopped else f"the run ended with: {error}")
        go_on = f"Then go on with the run: headrace resume {run.run_id}"
        if named := storage_error(error, run.folder.path, "The run cannot go on: ", go_on):
            raise named from error
        raise
    end_run(run, failed.state if failed else StepState.SUCCEEDED, f"run {run.run_id} ended")
    return failed


def _patiently(run: Run, tick: Tick) -> StepResult | None:
    """Do the steps; begin again at the present one as long as a folder cannot be used."""
    pause_s = 0.0
    while True:
        try:
            _pause(pause_s, tick)
            return _steps(run, tick)
        except (OSError, StorageError) as error:
            named = storage_error(error, run.folder.path) if isinstance(error, OSError) else error
            if named is None or isinstance(named, StorageFullError):
                raise
            logger.warning("Run %s waits for its folder: %s", run.run_id, named)
        pause_s = _STORAGE_PAUSE_S


def _steps(run: Run, tick: Tick) -> StepResult | None:
    steps = steps_of(run.recipe, run.request.kind)
    ending: dict[str, tuple[str, float]] = {}
    tick = tolerating_ledger_errors(_releasing(run, ending, tick))
    for index, step in enumerate(steps):
        result = _until_decided(run, step, tick)
        if result.state is not StepState.SUCCEEDED:
            return result
        if is_last_on_lease(run.recipe, run.request.kind, step):
            why = f"step {step.name} was the last on this lease"
            later = steps[index + 1 :]
            next_lease = run_leases.current(run, later[0].role) if later else None
            if not run_leases.release(run, step.role, why, wait=next_lease is None):
                ending[step.role] = why, time.monotonic() + _RELEASE_S
    return None


def _releasing(run: Run, ending: dict[str, tuple[str, float]], tick: Tick) -> Tick:
    """A tick that also records the ends of leases, by role, that were asked to end until a time.

    The next step does not wait for these. What is left when the run ends is ended with it.
    """

    def both() -> None:
        tick()
        for role, (why, until_s) in list(ending.items()):
            if run_leases.release(run, role, why, wait=time.monotonic() > until_s):
                del ending[role]

    return both


def _until_decided(run: Run, step: PlannedStep, tick: Tick) -> StepResult:
    """Run a step to its end: the terminal's driver of `decisions`, which sleeps to wait."""
    memory, logged, began_s = remembered(run, step.name), "", time.monotonic()
    while True:
        action = decide(observe(run, step, memory), memory)
        match action:
            case End():
                return conclude(run, step, action)
            case Submit():
                began_s = time.monotonic()
            case Wait(on="step"):
                # a step of a moment is not waited for longer than it takes
                growing_s = _FIRST_POLL_S + _POLL_GROWTH * (time.monotonic() - began_s)
                time.sleep(min(_POLL_S, growing_s))
            case Wait(why=why):
                if not isinstance(memory.error, CapacityError | None) and why != logged:
                    logger.warning("Step %s is asked for again later: %s", step.name, why)
                    logged = why
                _pause(action.pause_s, tick)
        memory = act(run, step, action, memory)
        if memory.ticket is not None and step.kind == "pack" and run.request.kind == "train":
            importlib.import_module(_JUDGES)
        tick()


def _pause(seconds: float, tick: Tick) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tick()
        time.sleep(_POLL_S)


class LeasePreview(Record):
    """One lease that a run would ask for."""

    role: str
    site: str = ""
    """Its site, of a suite over several; empty: there is only one."""
    steps: tuple[str, ...]
    machines: str
    """What it consists of, for the user."""
    time: str
    """How long it may last, and what that means for the steps."""
    walltime: Walltime | None = None
    """How `lifetime: auto` was chosen; null where the site says the time."""
    loss: str = ""
    """What interruptions cost on average; empty where none are to be expected."""
    cost: MostCost | None = None
    """The most that the lease costs; null where its machines cost nothing."""
    script: str
    """The batch script; empty without a queue."""


def previews(recipe: Recipe, site: Site, kind: str = "train") -> tuple[LeasePreview, ...]:
    """The leases that a run of this kind would ask for, in order of first steps; see `resolve`.

    Side effects: for `lifetime: auto`, asks the batch system for its longest job.
    """
    recipe, site = resolve(recipe, site, kind, is_from_terminal=True)
    steps: dict[str, list[PlannedStep]] = {}
    for step in steps_of(recipe, kind):
        steps.setdefault(step.role, []).append(step)
    return tuple(_preview(recipe, site, kind, role, served) for role, served in steps.items())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would take."""

    leases: tuple[LeasePreview, ...]
    """The leases it would request, in order."""
    prediction: Prediction
    """Time and cost, with intervals; unknown without a similar earlier run."""
    frontier: Frontier | None = None
    """Of a suite over several sites: time and cost by policies and deadlines; else None."""


def planned(recipe: Recipe, site: Site) -> Plan:
    """Return what a run, or a suite, would request, take and cost.

    Raises:
        UserError: The recipe does not fit the site, or one of `suite.sites`.
    """
    kind = "train" if recipe.suite is None else "suite"
    sites = suite_sites(recipe, None, account(), is_from_terminal=True)
    if len(sites) < 2:
        return Plan(leases=previews(recipe, site, kind), prediction=predicted(recipe, site, kind))
    leases = list(previews(*over_sites(recipe, site, sites), kind))
    for name, each in sites.items():
        found = previews(at_site(recipe, each.site), each.site, "part")
        leases += (lease.model_copy(update={"site": name}) for lease in found)
    unknown = Prediction(unknown=tuple(step.name for step in steps_of(recipe, kind)))
    frontier = planner().frontier(recipe, [each.site for each in sites.values()])
    return Plan(leases=tuple(leases), prediction=unknown, frontier=frontier)


def _preview(
    recipe: Recipe, site: Site, kind: str, role_name: str, served: Sequence[PlannedStep]
) -> LeasePreview:
    role, walltime = site.roles[role_name], walltime_of(recipe, site, role_name, kind)
    role = role if walltime is None else walltime.of(role)
    steps = tuple(step.name for step in served)
    lease_id = f"{_RUN_ID}-{role_name}-1"
    spec = LeaseSpec(
        lease_id=lease_id,
        key=f"{_RUN_ID}/{role_name}",
        run_id=_RUN_ID,
        role_name=role_name,
        role=role,
        walltime=walltime,
        code=recipe.code,
    )
    folder = SiteFolder(Path(site.folder).expanduser()).lease(lease_id)
    _, ranks = gang_size(recipe, role) if "train" in steps else (0, role.ranks_per_node)
    nodes = _counted(role.nodes, "node")
    pool, gang = f"pool of up to {nodes}", f"gang of {nodes}, {_counted(ranks, 'rank')} each"
    machines = pool if role.kind == "pool" else gang
    script = lease_machines.preview(folder, spec)
    loss = partial(planner().loss, recipe, site, role_name) if "train" in steps else str
    return LeasePreview(
        role=role_name,
        steps=steps,
        machines=f"{machines}, on {role.backend}",
        time=_time(role, steps, script, walltime),
        loss=inform(None, "cost of interruptions", loss, str) or "",
        walltime=walltime,
        cost=most_cost(role),
        script=script,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _time(role: Role, steps: tuple[str, ...], script: str, walltime: Walltime | None) -> str:
    limit = timedelta(seconds=role.lifetime_s)
    if not script:
        return f"at most {limit}, the `lifetime` of the role"
    if walltime is not None and role.kind == "pool":
        chosen = timedelta(seconds=walltime.seconds)
        return (
            f"time limit {chosen} of each node, chosen: {walltime.why}; nodes are replaced before "
            f"it, and the pool lasts {limit} at most"
        )
    whose = "the `lifetime` of the role" if walltime is None else f"chosen: {walltime.why}"
    text = (
        f"time limit {limit}, {whose}; the lease ends {leaving_s(role.lifetime_s):.0f} s before it"
    )
    if "train" in steps:
        text += (
            ", and training that is not done by then stops with a checkpoint and goes on in "
            "another job"
        )
    if walltime is not None:
        return text
    return (
        f"{text}. A shorter `lifetime` starts sooner where the queue is filled up with short jobs"
    )
