"""The few names of Airflow that move between its releases, and questions to its API server."""

from __future__ import annotations

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowSkipException,
        TaskDeferred,
    )

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowSkipException",
    "TaskDeferred",
    "dag_run_is_active",
    "task_states",
]

_ACTIVE_DAG_RUN = ["queued", "running"]


def dag_run_is_active(dag_id: str, run_id: str) -> bool:
    """Whether a DAG run exists and has not ended. Works in tasks and, in a thread, in triggers."""
    count = RuntimeTaskInstance.get_dr_count(
        dag_id=dag_id, run_ids=[run_id], states=_ACTIVE_DAG_RUN
    )
    return int(count) > 0


def task_states(dag_id: str, run_id: str) -> dict[str, str | None]:
    """State of each task of a DAG run by task id; None for a task that was not scheduled yet."""
    by_run = RuntimeTaskInstance.get_task_states(dag_id=dag_id, run_ids=[run_id])
    states = by_run.get(run_id, {})
    return {task: None if state is None else str(state) for task, state in states.items()}
