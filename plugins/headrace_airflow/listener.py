"""Airflow's listener: what a user has ended in the UI or by the API is stopped in the user's name.

The API server calls it, and alone knows who it was. Triggers hear of the same a moment later,
without a name; what this module misses, they stop.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.listeners import hookimpl

from headrace.errors import HeadraceError
from headrace.ledger.ledger import open_ledger
from headrace.runs.audit import AIRFLOW, Actor, note
from headrace.runs.runs import open_run
from headrace.runs.steps import cancel_step
from headrace_airflow.airflow_api import DagRunAddress, stopped

logger = logging.getLogger(__name__)

_JUST_NOW = timedelta(minutes=1)


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_failed(previous_state: object, task_instance: Any) -> None:
    """A task has failed, or was marked as failed, alone or with its DAG run."""
    if previous_state is None:  # so it is by hand only
        _stop(task_instance)


@hookimpl  # type: ignore[untyped-decorator]
def on_task_instance_success(previous_state: object, task_instance: Any) -> None:
    """A task has succeeded, or was marked as success."""
    if previous_state is None:
        _stop(task_instance)


def _stop(ti: Any) -> None:
    """Stop what a task waits for; in our DAGs it has the name of the step."""
    owner = str(DagRunAddress(dag_id=ti.dag_id, run_id=ti.run_id))
    try:
        record = open_ledger().run_by_key(owner)
        if record is not None:
            task = f"task {ti.task_id} (try {ti.try_number}) of {ti.dag_id} {ti.run_id}"
            user = _user(ti) or ""
            if cancel_step(open_run(record.run_id), ti.task_id, stopped(task, user or "a user")):
                by = Actor(user, AIRFLOW)
                note(by, "cancel", record.run_id, f"{ti.task_id}, whose task was marked")
    except HeadraceError as error:
        logger.warning("The work of %s is left to its trigger: %s", owner, error)


def _user(ti: Any) -> str | None:
    """Who has just changed a DAG run or a task of it, by the audit log; None where it is silent."""
    from airflow.models.log import (
        Log,
    )  # the API server has it; tasks, which have no use for it, not
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
