"""Airflow's listener: stops, in the user's name, work that a user has ended in the UI or the API.

The API server calls it, and only the API server knows the user. Triggers notice the same a moment
later, without a name, and stop what this module misses. The scheduler calls it, too, when a DAG run
has ended; only the scheduler can write the note with the reason.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.listeners import hookimpl

from headrace.errors import HeadraceError
from headrace.leases.end_leases import cancel_steps
from headrace.ledger.ledger import open_ledger
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.runs.runs import open_run
from headrace_airflow.airflow_api import DagRunAddress, stopped
from headrace_airflow.run_operators import WHY_KEY

logger = logging.getLogger(__name__)

_AUTHOR = "headrace"
"""Author of headrace's notes; notes of users have their names, or none."""

_MOST_CHARS = 1000
"""Longest text of a note."""

_JUST_NOW = timedelta(minutes=1)

_NOT_DONE = ("failed", "upstream_failed", "skipped")
_OF_RUNS = {"PrepareRunOperator", "StepOperator", "PackOperator", "FinishRunOperator"}


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_failed(previous_state: object, task_instance: Any) -> None:
    """Stop the work of a task that was marked as failed, alone or with its DAG run."""
    if previous_state is None:  # marked by a user, not failed by itself
        _stop(task_instance)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: Any) -> None:
    """Write the error of the first failed task into the DAG run's note."""
    if not (why := _first_why(dag_run)):
        return
    before = dag_run.dag_run_note
    if before is None:
        dag_run.note = (why[:_MOST_CHARS], _AUTHOR)
    elif before.user_id == _AUTHOR:
        before.content = why[:_MOST_CHARS]
    elif why not in (before.content or ""):
        before.content = f"{before.content}\n\n{why}"[:_MOST_CHARS]


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_running(dag_run: Any) -> None:
    """Clear what an earlier failure left, after a user has cleared any task of a DAG run.

    Airflow's *only failed* leaves the steps that were skipped, and `finish` would then fail.
    """
    from airflow.models.taskinstance import clear_task_instances  # as in `_user`
    from sqlalchemy.orm import object_session

    _remove_note(dag_run)
    if (session := object_session(dag_run)) is not None:
        tasks = dag_run.get_task_instances(session=session)
        left = [ti for ti in tasks if ti.operator in _OF_RUNS and ti.state in _NOT_DONE]
        left += [ti for ti in tasks if ti.operator == "FinishRunOperator" and ti.state == "success"]
        clear_task_instances(left, session, dag_run_state=False)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: Any) -> None:
    """Remove the note about an earlier failure: the DAG run has succeeded in the end."""
    _remove_note(dag_run)


def _remove_note(dag_run: Any) -> None:
    note_before = dag_run.dag_run_note
    if note_before is not None and note_before.user_id == _AUTHOR:
        dag_run.dag_run_note = None


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_success(previous_state: object, task_instance: Any) -> None:
    """Stop the work of a task that was marked as success."""
    if previous_state is None:
        _stop(task_instance)


def _stop(ti: Any) -> None:
    """Stop the step that a task waits for; in our DAGs the task has the name of the step."""
    owner = str(DagRunAddress(dag_id=ti.dag_id, run_id=ti.run_id))
    try:
        record = open_ledger().run_by_key(owner)
        if record is not None:
            task = f"task {ti.task_id} (try {ti.try_number}) of {ti.dag_id} {ti.run_id}"
            user = _user(ti) or ""
            rows = open_ledger().attempts(record.run_id, ti.task_id)
            if cancel_steps(open_run(record.run_id), rows, stopped(task, user or "a user")):
                by = Actor(user, AIRFLOW)
                note(by, "cancel", record.run_id, f"{ti.task_id}, whose task was marked")
    except HeadraceError as error:
        logger.warning("The work of %s is left to its trigger: %s", owner, error)


def _first_why(dag_run: Any) -> str:
    """Return the error of a DAG run's first task that failed by a mistake; empty without one."""
    from airflow.models.xcom import XComModel  # as in `_user`
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return ""
    asked = XComModel.get_many(run_id=dag_run.run_id, dag_ids=dag_run.dag_id, key=WHY_KEY)
    first = session.scalars(asked.order_by(None).order_by(XComModel.timestamp).limit(1)).first()
    return "" if first is None else str(XComModel.deserialize_value(first))


def _user(ti: Any) -> str | None:
    """Return who has just changed a DAG run or a task of it, by the audit log; None if unknown."""
    from airflow.models.log import Log  # not in tasks, which do not need it
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(ti)
    if session is None:
        return None
    newest_first = (
        select(Log.owner)
        .where(
            Log.dag_id == ti.dag_id,
            Log.run_id == ti.run_id,
            Log.extra.contains('"method": "PATCH"'),
            Log.dttm > datetime.now(timezone.utc) - _JUST_NOW,
        )
        .order_by(Log.id.desc())
    )
    name = session.scalars(newest_first.limit(1)).first()
    return str(name) if name else None
