"""The few names of Airflow that move between its releases, and questions to its API server."""

from __future__ import annotations

import logging

from airflow.sdk import BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
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
    "show",
    "task_states",
]

logger = logging.getLogger(__name__)

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


def show(dag_id: str, run_id: str, task_id: str, key: str, text: str) -> None:
    """Put a text on a task's tab XCom, also while it is deferred: only users can write notes.

    An API server that does not take it is no reason to fail: the same text is in the log.
    """
    try:
        BaseXCom.set(key, text, dag_id=dag_id, run_id=run_id, task_id=task_id)
    except AirflowRuntimeError as error:
        logger.warning("XCom %s of task %s cannot be written: %s", key, task_id, error)
