"""Airflow's cluster policy: no other file takes the id of one of headrace's DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowClusterPolicyViolation
from airflow.policies import hookimpl

from headrace_airflow.service import dags_folder


@hookimpl  # type: ignore[untyped-decorator]
def dag_policy(dag: Any) -> None:
    """Refuse a DAG that would replace one of headrace's; Airflow shows it as an import error."""
    ours = {path.stem for path in dags_folder().glob("headrace_*.py")}
    if dag.dag_id in ours and Path(dag.fileloc).resolve().parent != dags_folder().resolve():
        raise AirflowClusterPolicyViolation(
            f"'{dag.dag_id}' in {dag.fileloc} is the id of one of headrace's DAGs. "
            "Give the DAG another id."
        )
