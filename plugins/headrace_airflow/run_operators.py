"""Operators around the steps: making the run, recording its end, ending what has no owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from airflow.sdk import BaseOperator

from headrace.control.flow import steps_of
from headrace.control.reaper import end_run, reap
from headrace.control.runs import Run, RunRequest, create_run, finish_run, open_run
from headrace.states import StepState
from headrace_airflow.airflow_api import AirflowFailException, task_states
from headrace_airflow.choices import check_choice, check_overrides
from headrace_airflow.failures import told_to_airflow
from headrace_airflow.owners import DagRunAddress, owner_is_done, step_is_abandoned

Context = Mapping[str, Any]

_PREPARED_RUN = "{{ ti.xcom_pull(task_ids='prepare') }}"


class PrepareRunOperator(BaseOperator):  # type: ignore[misc]
    """Makes the run that the DAG run asks for, or finds the one it made before.

    Args:
        kind: `train` for the main job, `pack` for packing alone.
    """

    def __init__(self, *, kind: Literal["train", "pack"], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def execute(self, context: Context) -> str:
        """Returns the run's id."""
        owner = str(DagRunAddress.of(context))
        params = context["params"]
        with told_to_airflow():
            request = RunRequest(
                recipe=check_choice("recipes", params["recipe"]),
                site=check_choice("sites", params["site"]),
                overrides=check_overrides(params["overrides"]),
                key=owner,
                owner=owner,
                kind=self.kind,
            )
            run = create_run(request)
        self.log.info("Run %s in %s", run.run_id, run.folder.path)
        return run.run_id


class RunOperator(BaseOperator):  # type: ignore[misc]
    """An operator of a task that works on the run which `prepare` has made.

    Args:
        run_id: Id of the run.
    """

    template_fields = ("run_id",)

    def __init__(self, *, run_id: str = _PREPARED_RUN, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id


class FinishRunOperator(RunOperator):
    """Records how the run ended, also when it failed, and ends whatever it left behind.

    It fails when the run has: Airflow counts the steps that it skips in a DAG run that a user has
    marked failed as done well.
    """

    def execute(self, context: Context) -> str:
        """Returns the final state of the run, which is `succeeded`."""
        with told_to_airflow():
            run = open_run(self.run_id)
            undone = self._undone(context, run)
            if undone:
                end_run(run, StepState.FAILED)
                states = ", ".join(f"{step} is {state}" for step, state in undone.items())
                raise AirflowFailException(f"Run {run.run_id} failed: {states}")
            finish_run(run, StepState.SUCCEEDED)
        self.log.info("Run %s in %s has succeeded", run.run_id, run.folder.path)
        return StepState.SUCCEEDED.value

    def _undone(self, context: Context, run: Run) -> dict[str, str]:
        address = DagRunAddress.of(context)
        states = task_states(address.dag_id, address.run_id)
        steps = [step.name for step in steps_of(run.recipe, run.request.kind)]
        return {step: str(states.get(step)) for step in steps if states.get(step) != "success"}


class ReapOperator(BaseOperator):  # type: ignore[misc]
    """Ends steps, leases and runs whose DAG run or task has ended without doing so."""

    def execute(self, context: Context) -> list[str]:
        """Returns a line for each thing that was ended."""
        with told_to_airflow():
            lines = reap(owner_is_done, step_is_abandoned)
        for line in lines:
            self.log.info("%s", line)
        return list(lines)
