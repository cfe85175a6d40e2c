"""Operators of leases and steps: a task submits or collects in seconds, triggers do the waiting.

None of them has an `on_kill`: Airflow also calls it in a worker process that it has lost sight of,
whose work a later try has taken over by then (it would stop healthy work). A user's click on a
waiting task is heard by the trigger; what no trigger hears, the teardown tasks and the reaper end.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)

from headrace.errors import (
    CapacityError,
    JobRefusedError,
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
from headrace.leases import run_leases
from headrace.ledger.ledger import open_ledger
from headrace.runs.planned_steps import PlannedStep, roles_after, steps_of
from headrace.runs.runs import Run, open_run
from headrace.site_secrets import Asker
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.lease import look_lease, why_not_the_nodes
from headrace.status.step import figures, look
from headrace.steps.mailbox import StepResult
from headrace.steps.retry_policy import Attempt, decide
from headrace_airflow import connections
from headrace_airflow.airflow_api import stopped
from headrace_airflow.assets import DATASETS, publish_dataset
from headrace_airflow.run_operators import (
    Context,
    DaskDashboardLink,
    MistakeError,
    RunOperator,
    RunPageLink,
    briefly,
    failure_of,
    told_to_airflow,
    was_cancelled_for_another_try,
)
from headrace_airflow.telemetry import tell_lease, tell_step
from headrace_airflow.triggers import (
    MACHINES_KEY,
    LeaseTrigger,
    RoomTrigger,
    StepTrigger,
    WaitingTask,
)

_RETRY_PAUSE_S = 3.0
"""Before another attempt: short, since the task holds its place meanwhile."""

_BEFORE_KEY = "before"
"""XCom key: attempts at the step before this try of the task; they do not count."""

_UNOPENED_KEY = "unopened"
"""XCom key: classes of the errors of leases that did not open in this try of the task."""


class _StepTask(RunOperator):
    """What acquiring, running and releasing share: one step; skipped in a run without it."""

    def __init__(self, *, step: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step = step

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
        trigger = RoomTrigger(waiting, key, limits.max_leases, limits.leases_user)
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


class AcquireLeaseOperator(_StepTask):
    """Acquires the lease on which a step runs and waits until its machines are there.

    It waits as long as the site's `limits.max_leases` are open; the lease of an earlier try is
    found again. One that does not start is followed by another, as often as from a terminal. Those
    of later steps are opened with it where that costs nothing, and are found by the tasks that
    acquire them. Use it as a setup, with `ReleaseLeaseOperator` as its teardown.
    """

    operator_extra_links = (DaskDashboardLink(),)

    def execute(self, context: Context) -> str:
        """Returns the lease's id."""
        return self.ask_again(context)

    def ask_again(self, context: Context, event: object = None) -> str:
        """Ask for the lease, also after there was no room for it."""
        with told_to_airflow(context):
            run = self._run(context)
            planned = self._planned(run)
            ahead = roles_after(run.recipe, run.request.kind, planned)
            try:
                lease_id = run_leases.acquire(run, planned.role, ahead)
            except (CapacityError, SilentError) as error:
                self._wait_for_room(context, run, error)
            except JobRefusedError as error:
                context["ti"].xcom_push(MACHINES_KEY, error.what)
                raise
            except LeaseError as error:
                self._open_again(context, run, error)
                return self.ask_again(context)
            return self._ready(context, run, lease_id)

    def execute_complete(self, context: Context, event: object, lease_id: str) -> str:
        """See what became of the lease."""
        with told_to_airflow(context):
            run = self._run(context)
            return self._ready(context, run, lease_id)

    def _ready(self, context: Context, run: Run, lease_id: str) -> str:
        folder = run.lease_folder(lease_id)
        seen = briefly(
            lambda: look_lease(folder, run.site.limits.lost_after),
            lambda it: it.state is not LeaseState.STARTING,
        )
        if seen.state is LeaseState.LOST:
            seen = look_lease(folder, run.site.limits.lost_after, twice=True)
        if seen.state is LeaseState.STARTING:
            trigger = LeaseTrigger(task=self._waiting(context, run), lease_folder=str(folder.path))
            kwargs = {"lease_id": lease_id}
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", kwargs=kwargs)
        if seen.state is not LeaseState.READY:
            if mistake := why_not_the_nodes(run, lease_id):
                seen = seen.model_copy(update={"why_ended": mistake, "is_refused": True})
            context["ti"].xcom_push(MACHINES_KEY, seen.why_ended)
            why = f"Lease {lease_id} is {seen.state.value}: {seen.why_ended}"
            if seen.is_refused:
                raise MistakeError(why)
            self._open_again(context, run, LeaseError(why))
            return self.ask_again(context)
        run_leases.note_ready(run, lease_id)
        tell_lease(run, lease_id)
        self.lease_id = lease_id
        self.log.info("Lease %s is ready; its dashboard: the link on the tab Details", lease_id)
        return lease_id


class StepOperator(_StepTask):
    """Runs a step: finds, collects, re-attaches, and only then submits; then waits for its end.

    A failure that another attempt may heal is tried again in the same try of the task, from the
    last checkpoint, as often as from a terminal; what is given up fails the task at once. Airflow's
    own retries are for faults of its own. A task that is cleared while its
    step runs stops that attempt and makes another one, from the last checkpoint. One that is
    cleared after its step had succeeded collects the same result again: a new DAG run does the work
    anew.
    """

    operator_extra_links = (DaskDashboardLink(), RunPageLink())

    def execute(self, context: Context) -> dict[str, Any]:
        """Returns the step's outputs."""
        self._stop_what_was_cleared(context)
        with told_to_airflow(context):
            attempts = open_ledger().attempts(self.run_id, self.step)
        ended = sum(each.state.is_final for each in attempts)
        if ended:
            context["ti"].xcom_push(_BEFORE_KEY, ended)
        return self.ask_again(context)

    def ask_again(self, context: Context, event: object = None) -> dict[str, Any]:
        """Start the step, also after there was no room for its lease."""
        with told_to_airflow(context):
            run = self._run(context)
            self._planned(run)
            return self._follow(context, run, may_resubmit=True)

    def execute_complete(
        self, context: Context, event: object, ticket: dict[str, Any], may_resubmit: bool
    ) -> dict[str, Any]:
        """Collect the result of the attempt that was waited for."""
        with told_to_airflow(context):
            run = self._run(context)
            return self._finish(context, run, RunningAttempt(**ticket), may_resubmit=may_resubmit)

    def _stop_what_was_cleared(self, context: Context) -> None:
        """Stop the attempt of a task that a user has cleared; a retry would re-attach to it.

        The trigger of the earlier try hears of the clearing too, but often only when this try
        waits already, and then it cannot tell it from being moved to another triggerer.
        """
        ti = context["ti"]
        first_try_since_cleared = ti.max_tries - self.retries + 1
        if ti.try_number > 1 and ti.try_number == first_try_since_cleared:
            with told_to_airflow(context):
                reason = stopped(f"try {ti.try_number - 1} of task {ti.task_id} by clearing it")
                cancel_step(open_run(self.run_id), self.step, reason)

    def _follow(self, context: Context, run: Run, *, may_resubmit: bool) -> dict[str, Any]:
        try:
            started = start_step(run, self.step)
        except (CapacityError, SilentError) as error:
            self._wait_for_room(context, run, error)
        except LeaseError as error:
            self._open_again(context, run, error)
            return self._follow(context, run, may_resubmit=may_resubmit)
        if isinstance(started, StepResult):
            return self._conclude(context, run, started)
        self.log.info("Attempt %s in %s", started.attempt, started.step_folder)
        self.lease_id = started.lease_id
        lost_after_s = run.site.limits.lost_after
        seen = briefly(
            lambda: look(started.lease, started.folder, lost_after_s), lambda it: it.final
        )
        if seen.final:
            return self._finish(context, run, started, may_resubmit=may_resubmit)
        trigger = StepTrigger(
            task=self._waiting(context, run),
            lease_folder=started.lease_folder,
            step_folder=started.step_folder,
        )
        kwargs = {"ticket": asdict(started), "may_resubmit": may_resubmit}
        raise TaskDeferred(trigger=trigger, method_name="execute_complete", kwargs=kwargs)

    def _finish(
        self, context: Context, run: Run, ticket: RunningAttempt, *, may_resubmit: bool
    ) -> dict[str, Any]:
        """Collect an attempt that has ended.

        If the trigger or the reaper stopped it on behalf of an earlier try, just when this one had
        taken over, a new attempt is due, once.
        """
        self.lease_id = ticket.lease_id
        try:
            result = collect(run, ticket)
        except StepNotEndedError:  # its lease was taken for lost, and gives signs of life again
            return self._follow(context, run, may_resubmit=may_resubmit)
        except SilentError as error:
            self._wait_for_room(context, run, error)
        tell_step(run, self.step, result)
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
                self.log.info("The step is tried again: %s", _why(result))
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
        self._succeeded(context, run, result.outputs)
        return result.outputs

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:
        """What the step read and gave: the provider of OpenLineage, where installed, asks."""
        lineage = importlib.import_module("headrace_airflow.lineage")
        return lineage.lineage_of(open_run(self.run_id), self.step)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        """What to do with the outputs, for kinds of step that have something to publish."""


def _why(result: StepResult) -> str:
    return result.failure.message if result.failure else result.state.value


class PackOperator(StepOperator):
    """Runs the step that packs, and publishes the dataset as an Airflow asset."""

    def __init__(self, *, step: str = "pack", **kwargs: Any) -> None:
        super().__init__(step=step, outlets=[DATASETS], **kwargs)

    def _succeeded(self, context: Context, run: Run, outputs: Mapping[str, Any]) -> None:
        publish_dataset(context, run.run_id, run.recipe.named_dataset.name, outputs)


class ReleaseLeaseOperator(_StepTask):
    """Closes the lease on which a step ran; harmless when there is none.

    Args:
        before: A later step, which keeps the lease where it has the same role.
    """

    def __init__(self, *, before: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.before = before

    def execute(self, context: Context) -> None:
        """Returns when no process of the lease is left."""
        with told_to_airflow(context):
            run = open_run(self.run_id)
            role = self._planned(run).role
            if any(
                step.name == self.before and step.role == role
                for step in steps_of(run.recipe, run.request.kind)
            ):
                self.log.info("The lease of role %s is kept for step %s", role, self.before)
                return
            run_leases.release(run, role, f"released by task {self.task_id}")
