"""Which DAG run answers for a headrace run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.ledger.records import RunRecord
from headrace_airflow.airflow_api import dag_run_is_active, task_states

_KIND = "airflow"

_ENDED_TASK = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True, kw_only=True)
class DagRunAddress:
    """A DAG run; written `airflow:<dag_id>:<run_id>` in the ledger."""

    dag_id: str
    run_id: str

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> DagRunAddress:
        """The DAG run of a task's context."""
        dag_run = context["dag_run"]
        return cls(dag_id=dag_run.dag_id, run_id=dag_run.run_id)

    @classmethod
    def parse(cls, owner: str) -> DagRunAddress | None:
        """Read an owner's text; None for an owner of another kind."""
        kind, _, rest = owner.partition(":")
        if kind != _KIND:
            return None
        dag_id, _, run_id = rest.partition(":")
        return cls(dag_id=dag_id, run_id=run_id)

    def __str__(self) -> str:
        return f"{_KIND}:{self.dag_id}:{self.run_id}"


def owner_is_done(record: RunRecord) -> bool:
    """Whether the DAG run of a headrace run has ended or was deleted; False for other owners."""
    address = DagRunAddress.parse(record.owner)
    return address is not None and not dag_run_is_active(address.dag_id, address.run_id)


def step_is_abandoned(record: RunRecord, step: str) -> bool:
    """Whether the task of a running step has ended; in our DAGs it has the name of the step."""
    address = DagRunAddress.parse(record.owner)
    if address is None:
        return False
    return task_states(address.dag_id, address.run_id).get(step) in _ENDED_TASK
