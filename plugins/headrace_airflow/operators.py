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
from typing import Any, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from headrace.errors import (
    CapacityError,
    LeaseError,
    QueueFullError,
    SilentError,
    StepNotEndedError,
)
from headrace.execution.step_attempts import (
    RunningAttempt,
    cancel_step,
    collect,
    conclude,
    start_step,
)
from headrace.informing import inform
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.runs.lifecycle import reopened
from headrace.runs.planned_steps import PlannedStep, is_last_on_lease, roles_after, steps_of
from headrace.runs.runs import Run, open_run
from headrace.site_secrets import Asker
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import look
from headrace.status.step import figures
from headrace.steps.mailbox import StepResult
from headrace.steps.retry_policy import Attempt, decide
from headrace_airflow import connections
from headrace_airflow.airflow_api import DagRunAddress, stopped
from headrace_airflow.assets import DATASETS, publish_dataset
from headrace_airflow.run_operators import (
    Context,
    DaskDashboardLink,
    RunOperator,
    RunPageLink,
    briefly,
    failure_of,
    told_to_airflow,
    was_cancelled_for_another_try,
)
from headrace_airflow.telemetry import tell_lease, tell_step
from headrace_airflow.triggers import MACHINES_KEY, RoomTrigger, StepTrigger, WaitingTask

_RETRY_PAUSE_S = 3.0
"""Before another attempt: short, since the task holds its place meanwhile."""

_BEFORE_KEY = "before"
"""XCom key: attempts at the step before this try of the task; they do not count."""

_UNOPENED_KEY = "unopened"
"""XCom key: classes of the errors of leases that did not open in this try of the task."""


class StepOperator(RunOperator):
    """Runs a step: finds, collects, re-attaches, and only then submits; then waits for its end.

    It asks for its lease by itself and waits for the machines; the leases of later steps are opened
    with it where that costs nothing. The last step on a lease gives it back.

    A failure that another attempt may heal is tried again in the same try of the task, from the
    last checkpoint, as often as from a terminal; what is given up fails the task at once. Airflow's
    own retries are for faults of its own. A task that is cleared while its
    step runs stops that attempt and makes another one, from the last checkpoint. One that is
    cleared after its step had succeeded collects the same result again: a new DAG run does the work
    anew.
    """

    operator_extra_links = (DaskDashboardLink(), RunPageLink())

    def __init__(self, *, step: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step

    def execute(self, context: Context) -> dict[str, Any]:
        """Returns the step's outputs."""
        self._go_on_when_cleared(context)
        with told_to_airflow(context):
            attempts = open_ledger().attempts(self.run_id, self.step)
        ended = sum(each.state.is_final for each in attempts)
        if ended:
            context["ti"].xcom_push(_BEFORE_KEY, ended)
        return self.ask_again(context)

    def ask_again(self, context: Context, event: object = None) -> dict[str, Any]:
        """Start the step, also after there was no room for its lease."""
        with told_to_airflow(context):
            return self._follow(context, self._run(context), may_resubmit=True)

    def execute_complete(
        self, context: Context, event: object, ticket: dict[str, Any], may_resubmit: bool
    ) -> dict[str, Any]:
        """See how the attempt that was waited for and its machines stand, and go on from there."""
        with told_to_airflow(context):
            run = self._run(context)
            return self._wait(context, run, RunningAttempt(**ticket), may_resubmit=may_resubmit)

    def _planned(self, run: Run) -> PlannedStep:
        for planned in steps_of(run.recipe, run.request.kind):
            if planned.name == self.step:
                return planned
        why = "" if run.recipe.dataset else ": it has no dataset, so nothing is packed or staged"
        raise AirflowSkipException(f"Recipe '{run.recipe.name}' has no step '{self.step}'{why}")

    def _run(self, context: Context) -> Run:
        """The run, for whoever triggered the DAG run, with Airflow's connections."""
        user = context["dag_run"].triggering_user_name or ""
        asker = Asker(user=user, connection=connections.field_of)
        return replace(open_run(self.run_id), asker=asker)

    def _waiting(self, context: Context, run: Run) -> dict[str, Any]:
        ti = context["ti"]
        task = WaitingTask(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            try_number=ti.try_number,
            poll_s=run.site.limits.step_poll,
            lost_after_s=run.site.limits.lost_after,
        )
        return asdict(task)

    def _wait_for_room(
        self, context: Context, run: Run, error: CapacityError | SilentError
    ) -> NoReturn:
        self.log.info("%s The task waits for room and then asks again.", error.what)
        context["ti"].xcom_push(MACHINES_KEY, error.what)
        waiting, limits = self._waiting(context, run), run.site_now.limits
        if isinstance(error, (QueueFullError, SilentError)):  # it has its place in the site
            polls = [role.batch.poll for role in run.site.roles.values()]
            waiting["poll_s"] = max(waiting["poll_s"], min(polls))
        key = run_leases.lease_key(run, self._planned(run).role)
        places = {"max_active": limits.max_leases, "max_owner": limits.leases_user}
        trigger = RoomTrigger(waiting, key=key, **places)
        raise TaskDeferred(trigger=trigger, method_name="ask_again")

    def _open_again(self, context: Context, run: Run, error: LeaseError) -> None:
        """Pause before another lease is asked for, as often as from a terminal; else fail."""
        ti = context["ti"]
        classes = [*(ti.xcom_pull(key=_UNOPENED_KEY) or ()), error.failure_class.value]
        ti.xcom_push(_UNOPENED_KEY, classes)
        unopened = [Attempt(failure_class=FailureClass(each)) for each in classes]
        if not decide(unopened, run.recipe.retry).again:
            raise AirflowFailException(str(error)) from error
        self.log.info("Another lease is asked for: %s", error)
        time.sleep(_RETRY_PAUSE_S)

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
                cancel_step(run, self.step, reason)

    def _follow(self, context: Context, run: Run, *, may_resubmit: bool) -> dict[str, Any]:
        ahead = roles_after(run.recipe, run.request.kind, self._planned(run))
        try:
            started = start_step(run, self.step, ahead)
        except (CapacityError, SilentError) as error:
            self._wait_for_room(context, run, error)
        except LeaseError as error:
            self._open_again(context, run, error)
            return self._follow(context, run, may_resubmit=may_resubmit)
        if isinstance(started, StepResult):
            return self._conclude(context, run, started)
        self.log.info("Attempt %s in %s", started.attempt, started.step_folder)
        return self._wait(context, run, started, may_resubmit=may_resubmit)

    def _wait(
        self, context: Context, run: Run, ticket: RunningAttempt, *, may_resubmit: bool
    ) -> dict[str, Any]:
        """Wait for the end of an attempt; also for its machines, to write down that they came."""
        self.lease_id = ticket.lease_id
        lost_after_s = run.site.limits.lost_after
        seen = briefly(
            lambda: look(ticket.lease, ticket.folder, lost_after_s),
            lambda it: it.final or bool(it.lease.waits_for),
        )
        is_ready = bool(seen.lease.dashboard_url)
        if is_ready and open_ledger().lease(ticket.lease_id).state is LeaseState.STARTING:
            run_leases.note_ready(run, ticket.lease_id)
            inform(run.folder, "telemetry", partial(tell_lease, run, ticket.lease_id))
            self.log.info(
                "Lease %s is ready; its dashboard: the link on the tab Details", ticket.lease_id
            )
        if seen.final:
            return self._finish(context, run, ticket, may_resubmit=may_resubmit)
        trigger = StepTrigger(
            task=self._waiting(context, run),
            lease_folder=ticket.lease_folder,
            step_folder=ticket.step_folder,
            is_ready=is_ready,
        )
        kwargs = {"ticket": asdict(ticket), "may_resubmit": may_resubmit}
        raise TaskDeferred(trigger=trigger, method_name="execute_complete", kwargs=kwargs)

    def _finish(
        self, context: Context, run: Run, ticket: RunningAttempt, *, may_resubmit: bool
    ) -> dict[str, Any]:
        """Collect an attempt that has ended.

        If the trigger or the reaper stopped it on behalf of an earlier try, just when this one had
        taken over, a new attempt is due, once.
        """
        try:
            result = collect(run, ticket)
        except StepNotEndedError:  # its lease was taken for lost, and gives signs of life again
            return self._follow(context, run, may_resubmit=may_resubmit)
        except SilentError as error:
            self._wait_for_room(context, run, error)
        inform(run.folder, "telemetry", partial(tell_step, run, self.step, result))
        if was_cancelled_for_another_try(result) and may_resubmit:
            self.log.info("Attempt %s was cancelled; trying once more", ticket.attempt)
            return self._follow(context, run, may_resubmit=False)
        return self._conclude(context, run, result)

    def _conclude(self, context: Context, run: Run, result: StepResult) -> dict[str, Any]:
        if result.state is not StepState.SUCCEEDED:
            before = context["ti"].xcom_pull(key=_BEFORE_KEY) or 0
            decision, result = conclude(run, self.step, result, num_before=before)
            if decision.again:
                context["ti"].xcom_push(_UNOPENED_KEY, [])
                why = result.failure.message if result.failure else result.state.value
                self.log.info("The step is tried again: %s", why)
                time.sleep(_RETRY_PAUSE_S)
                return self._follow(context, run, may_resubmit=True)
            if result.failure is not None and result.failure.trace:
                self.log.error("%s", result.failure.trace)
            raise failure_of(self.step, result)
        told = figures(result.outputs.get("metrics", {}))
        self.log.info("%s", " · ".join([f"{self.step} succeeded", *told]))
        report = result.outputs.get("report")
        if report:
            self.log.info("Report: %s", report)
        planned = self._planned(run)
        if is_last_on_lease(run.recipe, run.request.kind, planned):
            run_leases.release(run, planned.role, f"step {self.step} was the last on this lease")
        self._succeeded(context, run, result.outputs)
        return result.outputs

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:
        """What the step read and gave: the provider of OpenLineage, where installed, asks."""
        lineage = importlib.import_module("headrace_airflow.lineage")
        return lineage.lineage_of(open_run(self.run_id), self.step)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        """What to do with the outputs, for kinds of step that have something to publish."""


class PackOperator(StepOperator):
    """Runs the step that packs, and publishes the dataset as an Airflow asset."""

    def __init__(self, *, step: str = "pack", **kwargs: Any) -> None:
        super().__init__(step=step, outlets=[DATASETS], **kwargs)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        publish_dataset(context, run.run_id, run.recipe.named_dataset.name, outputs)
