"""Operators around the steps: making the run, recording its end, ending what has no owner.

What all tasks share is here, too.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
from airflow.sdk import BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from headrace.errors import HeadraceError, StorageError, UserError
from headrace.execution.reap import ABANDONED, end_steps, going_on, reap
from headrace.files.layout import RunFolder
from headrace.files.machine import storage_error
from headrace.informing import DECISION_S, inform
from headrace.leases.run_leases import RELEASED
from headrace.ledger.ledger import open_ledger
from headrace.runs.audit import START, Actor, noting_refusals
from headrace.runs.lifecycle import create_run, finish_run
from headrace.runs.planned_steps import steps_of
from headrace.runs.planning import note_prediction
from headrace.runs.runs import Run, RunRequest, open_run, outputs_of
from headrace.states import StepState
from headrace.steps.mailbox import StepResult
from headrace_airflow.airflow_api import STOPPED, DagRunAddress, Owners, task_states
from headrace_airflow.assets import MODELS, publish_model
from headrace_airflow.dag_parts import check_choice, check_overrides, check_sweep, overrides_of
from headrace_airflow.eta_changes import eta_changes
from headrace_airflow.telemetry import tell_run

Context = Mapping[str, Any]
Notifier = Callable[[Context], object]

WHY_KEY = "why"
"""XCom key of the message about a user's mistake; the DAG run's note shows it."""

RUN_TAB = "headrace-run"
"""Route of the tab on a DAG run that shows the page of its run."""

OF_HEADRACE = (ABANDONED, RELEASED)
"""Parts of the reasons of a cancellation that no user requested."""

OF_AIRFLOW = (STOPPED, *OF_HEADRACE)
"""Parts of the reasons after which a task that runs again tries its step again."""


class MistakeError(AirflowFailException):  # type: ignore[misc]
    """Ends a task for good: its message says all, and is the last thing in the task's log."""


def _without_trace(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Processor of structlog: the message in place of `Task failed with exception` and a trace."""
    error = sys.exc_info()[1]
    is_named = error and error.__suppress_context__ and not error.__cause__  # raised from None
    if isinstance(error, AirflowException) and is_named and event.pop("exc_info", None):
        event["event"] = str(error)
    return event


@contextmanager
def told_to_airflow(context: Context) -> Iterator[None]:
    """Turn errors into Airflow's: final ones with an XCom for the note, storage without a trace."""
    try:
        yield
    except (HeadraceError, MistakeError, OSError) as caught:
        error = storage_error(caught, Path()) or caught
        if isinstance(error, OSError):
            raise
        processors = structlog.get_config()["processors"]  # of the task's process, which ends now
        if _without_trace not in processors:
            processors.insert(0, _without_trace)
        if isinstance(error, HeadraceError) and error.failure_class.is_retried:
            raise AirflowException(str(error)) from (
                None if isinstance(error, StorageError) else error
            )
        context["ti"].xcom_push(WHY_KEY, str(error))
        raise MistakeError(str(error)) from None


def failure_of(step: str, result: StepResult) -> Exception:
    """Return the exception that ends the task of a step that has failed for good."""
    failure = result.failure
    why = failure.message if failure else "no reason given"
    where = f" ({failure.where})" if failure and failure.where else ""
    is_mistake = failure is not None and not failure.failure_class.is_retried
    kind = MistakeError if is_mistake else AirflowFailException
    error: Exception = kind(f"Step {step} {result.state.value}: {why}{where}")
    return error


class DaskDashboardLink(BaseOperatorLink):  # type: ignore[misc]
    """The Dask dashboard of the lease that the task uses, in headrace's pages.

    The UI shows `http` addresses only beside a task: files are in the logs.
    """

    name = "Dask dashboard"

    def get_link(self, operator: RunOperator, *, ti_key: Any) -> str:
        """Address of the dashboard; empty until the lease is ready."""
        lease = operator.lease_id
        return _in_airflow(f"plugin/headrace/headrace/dask/?id={quote(lease)}") if lease else ""


class RunPageLink(BaseOperatorLink):  # type: ignore[misc]
    """The page of the run, as a tab of its DAG run."""

    name = "Run in headrace"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Address of the page."""
        dag_run = f"dags/{quote(ti_key.dag_id)}/runs/{quote(ti_key.run_id)}"
        return _in_airflow(f"{dag_run}/plugin/{RUN_TAB}")


def _in_airflow(page: str) -> str:
    """Address of a page; empty where Airflow does not know its own address."""
    airflow = conf.get("api", "base_url", fallback="").rstrip("/")
    return f"{airflow}/{page}" if airflow else ""


class PrepareRunOperator(BaseOperator):  # type: ignore[misc]
    """Makes the run that the DAG run asks for, or finds the one it made before.

    All mistakes that can be found early are checked here, before any machine is asked for. What
    the run will be, the resolved recipe and the plan, is in the log and on the tab Rendered
    Templates. Its XCom `return_value` is the run's id.

    Args:
        kind: `train`, `pack`, `suite` or `probe`: the steps that the run has.
        **kwargs: As of Airflow's `BaseOperator`.
    """

    template_fields = ("plan", "resolved_recipe")
    template_fields_renderers = {"resolved_recipe": "yaml"}
    overwrite_rtif_after_execution = True

    def __init__(self, *, kind: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.plan = ""
        self.resolved_recipe = ""

    def execute(self, context: Context) -> str:
        """Returns the run's id."""
        owner = str(DagRunAddress.of(context))
        params = context["params"]
        user = context["dag_run"].triggering_user_name or ""
        given = [f"{key}={value}" for key, value in params.items() if value and key != "overrides"]
        words = " ".join((*given, *(params.get("overrides") or ())))
        with told_to_airflow(context):
            with noting_refusals(Actor.of(owner, user), START, owner, words):
                record = open_ledger().run_by_key(owner)
                if record is not None and context["ti"].try_number == 1:
                    what = f"An earlier DAG run of this id, now deleted, made run {record.run_id}"
                    raise UserError(what, "Trigger this one anew, under another id.")
                sites = [check_choice("sites", each) for each in params.get("sites") or ()]
                request = RunRequest(
                    site=sites[0] if sites else check_choice("sites", params["site"]),
                    key=owner,
                    owner=owner,
                    user=user,
                    kind=self.kind,
                    **self._asked(params),
                )
            run = create_run(request)
            note_prediction(run)
            preview = importlib.import_module("headrace_airflow.preview")
            recipe, plan = partial(preview.recipe_text, run), partial(preview.plan_text, run)
            self.resolved_recipe = inform(run.folder, "resolved recipe", recipe, str) or ""
            self.plan = inform(run.folder, "plan", plan, str, DECISION_S) or ""
        self.log.info("Run %s in %s", run.run_id, run.folder.path)
        self.log.info("The plan:\n%s", self.plan)
        self.log.info("The recipe, resolved:\n%s", self.resolved_recipe)
        return run.run_id

    def _asked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of the request that its kind of run has."""
        recipe, overrides = check_choice("recipes", params["recipe"]), overrides_of(params)
        if self.kind == "suite":
            return {"recipe": recipe, "overrides": check_sweep(overrides, params["trials"])}
        return {"recipe": recipe, "overrides": check_overrides(overrides)}


class RunOperator(BaseOperator):  # type: ignore[misc]
    """An operator of a task that works on the run which `prepare` has made."""

    def __init__(self, *, run_id: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id
        self.lease_id = ""

    def pre_execute(self, context: Context) -> None:
        """Find the run; the ledger knows it, so that no XCom is asked for."""
        with told_to_airflow(context):
            self.run_id = self.run_id or DagRunAddress.of(context).run().run_id


class FinishRunOperator(RunOperator):
    """Records how the run ended, also when it failed, and ends whatever it left behind.

    With `outlets=[MODELS]` of `headrace_airflow.assets` it publishes the model that was trained.
    It fails when the run has, or was stopped: Airflow counts the steps that it skips in a DAG run
    that a user has marked failed as done well. It succeeds if a user has marked a step as success
    instead of waiting for it: the ledger alone says then that the run was cancelled.
    """

    operator_extra_links = (RunPageLink(),)

    def execute(self, context: Context) -> str:
        """Returns the final state of the run: `succeeded`, or `cancelled` by a mark of success."""
        with told_to_airflow(context):
            run = open_run(self.run_id)
            end_steps(run, ABANDONED)  # what a user stops takes a moment to end
            address = DagRunAddress.of(context)
            tasks = task_states(address.dag_id, address.run_id)
            steps = [step.name for step in steps_of(run.recipe, run.request.kind)]
            states = {step: str(tasks.get(step)) for step in steps}
            by_user = _stopped_by_user(run, states)
            undone = _undone(states, by_user)
            state = _state(run, undone, by_user)
            finish_run(run, state)
            inform(run.folder, "telemetry", partial(tell_run, run))
            if undone:
                lines = ", ".join(f"{step} is {at}{_why(run, step)}" for step, at in undone.items())
                raise MistakeError(f"Run {run.run_id} {state.value}: {lines}")
        outputs = outputs_of(run.run_id)
        if MODELS in self.outlets and "train" in outputs:  # not where a user marked it success
            publish_model(context, run.run_id, run.recipe.name, outputs)
        self.log.info("%s: run %s in %s", state.value.capitalize(), run.run_id, run.folder.path)
        return state.value


def _undone(states: Mapping[str, str], by_user: Collection[str]) -> dict[str, str]:
    is_marked = any(states[step] == "success" for step in by_user)
    good = ("success", "skipped") if is_marked else ("success",)
    return {step: state for step, state in states.items() if state not in good}


def _stopped_by_user(run: Run, states: Mapping[str, str]) -> list[str]:
    """Return the steps whose newest attempt a user stopped, or whose task has a mark of success."""
    rows = filter(None, (open_ledger().latest_attempt(run.run_id, step) for step in states))
    cancelled = [row for row in rows if row.state is StepState.CANCELLED]
    stopped = [row.step for row in cancelled if not any(why in row.message for why in OF_HEADRACE)]
    done = outputs_of(run.run_id)
    return stopped + [x for x, state in states.items() if state == "success" and x not in done]


def _state(run: Run, undone: Collection[str], by_user: Collection[str]) -> StepState:
    """Return cancelled if a user stopped the run or one of its steps, by whichever way."""
    if by_user or (undone and open_ledger().run(run.run_id).state is StepState.CANCELLED):
        return StepState.CANCELLED
    return StepState.FAILED if undone else StepState.SUCCEEDED


def _why(run: Run, step: str) -> str:
    """Why the newest attempt of a step has failed, in its first line; empty where it has not."""
    latest = open_ledger().latest_attempt(run.run_id, step)
    message = "" if latest is None or not latest.message else latest.message.splitlines()[0]
    return f" ({message})" if message else ""


class ReapOperator(BaseSensorOperator):  # type: ignore[misc]
    """Ends steps, leases and runs whose DAG run or task has ended without doing so.

    It looks every 15 seconds in the same DAG run and frees its worker slot meanwhile. It needs no
    triggerer. After an hour it succeeds, so that Airflow can remove old rows and logs.

    Args:
        on_eta_change: Notifiers of Airflow that are called for each run whose expected end has
            moved far; their templates know it as `change`.
        **kwargs: As of Airflow's `BaseSensorOperator`.
    """

    def __init__(self, *, on_eta_change: Sequence[Notifier] = (), **kwargs: Any) -> None:
        super().__init__(mode="reschedule", poke_interval=15, **kwargs)
        self.on_eta_change = on_eta_change

    def poke(self, context: Context) -> bool:
        """Look once, and log what was ended; return whether the DAG run is an hour old."""
        owners = Owners(going_on())
        for line in reap(owners.ended, owners.has_left):
            self.log.info("%s", line)
        for change in eta_changes() if self.on_eta_change else ():
            for number, notifier in enumerate(self.on_eta_change, 1):
                # a copy: it keeps what it rendered
                call = partial(copy.copy(notifier), {**context, "change": change})
                inform(RunFolder(Path(change.folder)), f"notice {number}", call)
        started_at = context["dag_run"].start_date
        return bool(datetime.now(timezone.utc) - started_at > timedelta(hours=1))


class CleanOperator(BaseOperator):  # type: ignore[misc]
    """Removes what the `retention` of sites lets go; see `headrace clean`."""

    def execute(self, context: Context) -> None:
        """Log what was removed, and why something stays."""
        from headrace.cleanup.clean import carry_out, retention_plan  # imports xxhash

        with told_to_airflow(context):
            for item in carry_out(retention_plan(), Actor.of("airflow:", "")):
                self.log.info("%s %s: %s", item.kind, item.name, item.stays or "removed")
