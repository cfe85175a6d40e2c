"""Operators of steps: a task submits or collects in seconds, triggers do the waiting.

None of them has an `on_kill`: Airflow also calls it in a worker process that it has lost sight of,
whose work a later try has taken over by then (it would stop healthy work). A user's click on a
waiting task is heard by the trigger; what no trigger hears, the task `finish` and the reaper end.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from headrace.errors import LeaseError
from headrace.execution import decisions
from headrace.execution.decisions import Attach, Collect, End, Memory, Wait, decide
from headrace.execution.step_attempts import act, conclude, observe, remembered
from headrace.files.atomic import read_record
from headrace.files.layout import StepFolder
from headrace.informing import inform
from headrace.leases import run_leases
from headrace.leases.end_leases import cancel_steps
from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import reopened
from headrace.runs.planned_steps import PlannedStep, is_last_on_lease, steps_of
from headrace.runs.runs import Run, open_run
from headrace.site_secrets import Asker
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.step import figures
from headrace.suites.records import SuiteSummary
from headrace_airflow import connections
from headrace_airflow.airflow_api import DagRunAddress, stopped
from headrace_airflow.assets import DATASETS, publish_dataset
from headrace_airflow.run_operators import (
    OF_AIRFLOW,
    Context,
    DaskDashboardLink,
    RunOperator,
    RunPageLink,
    failure_of,
    told_to_airflow,
)
from headrace_airflow.telemetry import tell_lease, tell_step
from headrace_airflow.triggers import MACHINES_KEY, RoomTrigger, StepTrigger, WaitingTask

PATIENCE_S = 6.0
"""Longest wait in the task itself: deferring and resuming takes that on a busy machine."""

SITES_KEY = "sites"
"""XCom key of the table of a suite's sites: its part, trials, cost and leases at each."""

_POLL_S = 0.2


class StepOperator(RunOperator):
    """Runs a step: finds, collects, re-attaches, and only then submits; then waits for its end.

    It opens its lease and waits for the machines; the leases of later steps are opened with it if
    that costs nothing. The last step on a lease gives it back.

    A failure that another attempt may heal is tried again in the same try of the task, from the
    last checkpoint, as often as from a terminal; a step that is given up fails the task at once.
    Airflow's own retries are for faults of Airflow. A task that is cleared while its step runs
    stops that attempt and makes another one. A task that is cleared after its step has succeeded
    collects the same result again: a new DAG run does the work anew.

    Args:
        step: Name of the step: `pack`, `stage`, `train`, `evaluate`, `suite` or `probe`. Give the
            task the same name: what a user marks in Airflow is found by it.
        **kwargs: As of Airflow's `BaseOperator`.
    """

    operator_extra_links = (DaskDashboardLink(), RunPageLink())

    def __init__(self, *, step: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the step's outputs."""
        self._go_on_when_cleared(context)
        with told_to_airflow(context):
            run = self._run(context)
            return self._drive(context, run, remembered(run, self.step))

    def execute_complete(self, context: Context, event: object, memory: dict[str, Any]) -> Any:
        """Go on after a trigger has fired."""
        with told_to_airflow(context):
            return self._drive(context, self._run(context), _memory_of(memory))

    def _planned(self, run: Run) -> PlannedStep:
        for planned in steps_of(run.recipe, run.request.kind):
            if planned.name == self.step:
                return planned
        why = "" if run.recipe.dataset else ": it has no dataset, so nothing is packed or staged"
        raise AirflowSkipException(f"Recipe '{run.recipe.name}' has no step '{self.step}'{why}")

    def _run(self, context: Context) -> Run:
        """Return the run, for the user who triggered the DAG run, with Airflow's connections."""
        user = context["dag_run"].triggering_user_name or ""
        asker = Asker(user=user, connection=connections.field_of)
        return replace(open_run(self.run_id), asker=asker)

    def _defer(self, context: Context, run: Run, action: Wait) -> NoReturn:
        """Leave the waiting to a trigger: for the step's end, or for room for its lease."""
        ti, limits, ticket = context["ti"], run.site_now.limits, action.then.ticket
        names = {name: getattr(ti, name) for name in ("dag_id", "run_id", "task_id", "try_number")}
        task = asdict(WaitingTask(**names, poll_s=run.site.limits.step_poll))
        trigger: StepTrigger | RoomTrigger
        if action.on == "step" and ticket is not None:
            folder = str(ticket.folder.path)
            trigger = StepTrigger(task, step_folder=folder, is_ready=action.then.is_ready)
        else:
            self.log.info("%s The task waits for room and then asks again.", action.why)
            ti.xcom_push(MACHINES_KEY, action.why)
            if action.on == "queue":  # its lease has its place in the site
                polls = [role.batch.poll for role in run.site.roles.values()]
                task["poll_s"] = max(task["poll_s"], min(polls))
            key = run_leases.lease_key(run, self._planned(run).role)
            most = {"max_active": limits.max_leases, "max_owner": limits.leases_user}
            trigger = RoomTrigger(task, key=key, **most)
        kwargs = {"memory": _as_json(action.then)}
        raise TaskDeferred(trigger=trigger, method_name="execute_complete", kwargs=kwargs)

    def _go_on_when_cleared(self, context: Context) -> None:
        """Stop the attempt of a task that a user has cleared; a retry would re-attach to it.

        The trigger of the earlier try hears of the clearing too, but often only when this try
        waits already, and then it cannot tell it from being moved to another triggerer.

        A run that had ended goes on: `prepare` sees to it only where it was cleared, too.
        """
        ti = context["ti"]
        first_try_since_cleared = ti.max_tries - self.retries + 1
        if ti.try_number > 1 and ti.try_number == first_try_since_cleared:
            with told_to_airflow(context):
                request = open_run(self.run_id).request
                owned = request.model_copy(update={"owner": str(DagRunAddress.of(context))})
                run = reopened(open_ledger().run(self.run_id), owned)
                reason = stopped(f"try {ti.try_number - 1} of task {ti.task_id} by clearing it")
                cancel_steps(run, open_ledger().attempts(run.run_id, self.step), reason)

    def _drive(self, context: Context, run: Run, memory: Memory) -> dict[str, Any]:
        """Run the step to its end: Airflow's driver of `decisions`, which defers to wait."""
        step, memory = self._planned(run), replace(memory, revived_after=OF_AIRFLOW)
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self.lease_id = memory.ticket.lease.lease_id if memory.ticket else self.lease_id
            action = decide(observe(run, step, memory), memory)
            match action:
                case End():
                    return self._end(context, run, step, action)
                case Wait(on="retry"):
                    self.log.info("The step is tried again: %s", action.why)
                    time.sleep(action.pause_s)
                case Wait(on="step", why="") if time.monotonic() < until_s:
                    time.sleep(_POLL_S)
                    continue
                case Wait():
                    self._defer(context, run, action)
            until_s = time.monotonic() + PATIENCE_S
            is_ready = isinstance(action, Attach) and action.is_ready
            is_new = is_ready and open_ledger().lease(self.lease_id).state is LeaseState.STARTING
            memory = act(run, step, action, memory)
            if is_new:
                inform(run.folder, "telemetry", partial(tell_lease, run, self.lease_id))
                self.log.info("Lease %s is ready; its dashboard: see Details", self.lease_id)
            if isinstance(action, Collect) and memory.result is not None:
                inform(run.folder, "telemetry", partial(tell_step, run, self.step, memory.result))

    def _end(self, context: Context, run: Run, step: PlannedStep, end: End) -> dict[str, Any]:
        if sites := inform(run.folder, "sites", partial(_sites, run), list):
            context["ti"].xcom_push(SITES_KEY, sites)
        try:
            result = conclude(run, step, end)
        except LeaseError as error:
            raise AirflowFailException(end.why) from error
        if result.state is not StepState.SUCCEEDED:
            if result.failure is not None and result.failure.trace:
                self.log.error("%s", result.failure.trace)
            raise failure_of(self.step, result)
        metrics = figures(result.outputs.get("metrics", {}))
        self.log.info("%s", " · ".join([f"{self.step} succeeded", *metrics]))
        if report := result.outputs.get("report"):
            self.log.info("Report: %s", report)
        if is_last_on_lease(run.recipe, run.request.kind, step):
            run_leases.release(run, step.role, f"step {self.step} was the last on this lease")
        self._succeeded(context, run, result.outputs)
        return result.outputs

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:
        """What the step read and gave: the provider of OpenLineage, where installed, asks."""
        lineage = importlib.import_module("headrace_airflow.lineage")
        return lineage.lineage_of(open_run(self.run_id), self.step)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        """What to do with the outputs, for kinds of step that have something to publish."""


def _sites(run: Run) -> list[dict[str, Any]]:
    """Return a row for each site of a suite over several, with its leases; else none."""
    summary = read_record(run.folder.summary, SuiteSummary)
    rows = summary.sites if summary else ()
    leases = open_ledger().leases_of([each.run_id for each in rows])
    names = ("site", "run_id", "state", "ended", "usd")
    return [
        {
            **each.model_dump(include={*names}),
            "leases": [lease.lease_id for lease in leases.get(each.run_id, ())],
        }
        for each in rows
    ]


def _as_json(memory: Memory) -> dict[str, Any]:
    """Return what a task remembers while it is deferred."""
    ticket = memory.ticket
    return {
        "num_before": memory.num_before,
        "ticket": ticket and [ticket.step, ticket.attempt, str(ticket.folder.path)],
        "is_ready": memory.is_ready,
        "unopened": [each.value for each in memory.unopened],
        "is_revived": memory.is_revived,
    }


def _memory_of(values: Mapping[str, Any]) -> Memory:
    unopened, ticket = tuple(map(FailureClass, values["unopened"])), None
    if values["ticket"]:
        step, attempt, folder = values["ticket"]
        place = StepFolder(Path(folder))
        ticket = decisions.RunningAttempt(step=step, attempt=attempt, folder=place)
    return Memory(**{**values, "ticket": ticket, "unopened": unopened})


class PackOperator(StepOperator):
    """Runs the step that packs, and publishes the dataset as an Airflow asset.

    Args:
        step: Name of the step.
        **kwargs: As of Airflow's `BaseOperator`, without `outlets`: the outlet is `DATASETS`.
    """

    def __init__(self, *, step: str = "pack", **kwargs: Any) -> None:
        super().__init__(step=step, outlets=[DATASETS], **kwargs)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        publish_dataset(context, run.run_id, run.recipe.named_dataset.name, outputs)
