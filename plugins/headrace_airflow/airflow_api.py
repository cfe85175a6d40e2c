"""Requests of tasks and triggers to Airflow's API server, and DAG runs as owners of runs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import Asset, BaseXCom
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.context import InletEventsAccessor
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from headrace.errors import UnknownNameError
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.usage_rows import at_most
from headrace.states import StepState

logger = logging.getLogger(__name__)

STOPPED = "in Airflow, ending"
"""Part of the reason why work stops: a user has ended its task."""

_KIND = "airflow"
_MOST_EVENTS = 1000
_AT_ONCE = 100
"""DAG runs per request."""
_ACTIVE_DAG_RUN = ["queued", "running"]
_ENDED_TASK = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


def dag_runs_are_active(dag_id: str, *run_ids: str) -> bool:
    """Whether DAG runs exist and none has ended. Works in tasks and, in a thread, in triggers."""
    count = RuntimeTaskInstance.get_dr_count(
        dag_id=dag_id, run_ids=list(run_ids), states=_ACTIVE_DAG_RUN
    )
    return int(count) == len(run_ids)


def task_states(dag_id: str, run_id: str) -> dict[str, str | None]:
    """State of each task of a DAG run by task id; None for a task that was not scheduled yet."""
    return tasks_of_runs(dag_id, [run_id]).get(run_id, {})


def tasks_of_runs(dag_id: str, run_ids: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Return the same for several DAG runs, by the id of each."""
    by_run = RuntimeTaskInstance.get_task_states(dag_id=dag_id, run_ids=list(run_ids))
    return {
        run_id: {task: None if state is None else str(state) for task, state in states.items()}
        for run_id, states in by_run.items()
    }


def show(dag_id: str, run_id: str, task_id: str, key: str, text: str) -> None:
    """Put a text on a task's tab XCom, also while it is deferred: only users can write notes.

    A failure is only logged, because the log has the same text.
    """
    try:
        BaseXCom.set(key, text, dag_id=dag_id, run_id=run_id, task_id=task_id)
    except AirflowRuntimeError as error:
        logger.warning("XCom %s of task %s cannot be written: %s", key, task_id, error)


def stopped(task: str, user: str = "a user") -> str:
    """Return why work stops: a user has marked or cleared its task."""
    return f"by {user} {STOPPED} {task}"


def published_extras(asset: Asset) -> list[dict[str, Any]]:
    """Return the extras of an asset's newest events, the newest first. Works in tasks."""
    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri)
    return [dict(event.extra) for event in events.ascending(False).limit(_MOST_EVENTS)]


@dataclass(frozen=True, kw_only=True)
class DagRunAddress:
    """A DAG run; written `airflow:<dag_id>:<run_id>` in the ledger."""

    dag_id: str
    run_id: str

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> DagRunAddress:
        """Return the DAG run of a task's context."""
        dag_run = context["dag_run"]
        return cls(dag_id=dag_run.dag_id, run_id=dag_run.run_id)

    @classmethod
    def parse(cls, owner: str) -> DagRunAddress | None:
        """Parse an owner's text; None for an owner of another kind."""
        kind, _, rest = owner.partition(":")
        if kind != _KIND:
            return None
        dag_id, _, run_id = rest.partition(":")
        return cls(dag_id=dag_id, run_id=run_id)

    def run(self) -> RunRecord:
        """Return the run that it has made; `UnknownNameError` before that."""
        record = open_ledger().run_by_key(str(self))
        if record is None:
            what = f"DAG run {self.run_id} of {self.dag_id} has no run of headrace yet"
            raise UnknownNameError(what, "The first task of headrace's DAGs, `prepare`, makes it.")
        return record

    def __str__(self) -> str:
        return f"{_KIND}:{self.dag_id}:{self.run_id}"


class Owners:
    """The DAG runs of many runs, requested from Airflow together.

    Only active ones are trusted: all others are requested again, one by one, before a decision.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._living: set[str] = set()
        self._tasks: dict[str, dict[str, str | None]] = {}
        by_dag = defaultdict[str, set[str]](set)
        for address in filter(None, (DagRunAddress.parse(record.owner) for record in records)):
            by_dag[address.dag_id].add(address.run_id)
        for dag_id, run_ids in by_dag.items():
            for some in at_most(sorted(run_ids), _AT_ONCE):
                self._ask(dag_id, some)

    def _ask(self, dag_id: str, run_ids: Sequence[str]) -> None:
        if dag_runs_are_active(dag_id, *run_ids):
            self._living |= {str(DagRunAddress(dag_id=dag_id, run_id=each)) for each in run_ids}
        for run_id, states in tasks_of_runs(dag_id, run_ids).items():
            self._tasks[str(DagRunAddress(dag_id=dag_id, run_id=run_id))] = states

    def ended(self, record: RunRecord) -> StepState | None:
        """Return the state of a run whose DAG run has ended; None if it goes on, or for others.

        A user has deleted a DAG run without tasks: its run is cancelled.
        """
        address = DagRunAddress.parse(record.owner)
        if address is None or record.owner in self._living:
            return None
        if dag_runs_are_active(address.dag_id, address.run_id):
            return None
        has_tasks = task_states(address.dag_id, address.run_id)
        return StepState.LOST if has_tasks else StepState.CANCELLED

    def has_left(self, record: RunRecord, step: str) -> bool:
        """Whether the task of a running step has ended; in our DAGs it has the name of the step."""
        address = DagRunAddress.parse(record.owner)
        states = self._tasks.get(record.owner, {step: "failed"})
        if address is None or states.get(step) not in _ENDED_TASK:
            return False
        return task_states(address.dag_id, address.run_id).get(step) in _ENDED_TASK
