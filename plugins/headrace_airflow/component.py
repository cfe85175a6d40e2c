"""Runs one component of Airflow: `python -m headrace_airflow.component scheduler …`.

As `python -m airflow` does, but it ends quickly, see `headrace.processes.identity.end_quickly`, and
it imports and reads once what each of the processes that it forks would read anew.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from headrace.processes.identity import end_quickly

_DAG_FILES = ("headrace_airflow.assets", "headrace_airflow.dag_parts", "headrace_airflow.operators")
_TASKS = (
    "numpy",
    "airflow.sdk.execution_time.task_runner",
    "airflow.dag_processing.dagbag",
    "airflow.sdk.serde",
    "headrace_airflow.preview",
)
"""What runs Airflow's tasks, and what the first task of a DAG imports when it is at work."""

FORKED = {
    "scheduler": (*_TASKS, *_DAG_FILES),
    "dag-processor": _DAG_FILES,
}
"""By component, what its children use: tasks those of the scheduler, files of DAGs the other's."""


def preload(command: Sequence[str]) -> None:
    """Import what the children of a component use, by the words after `airflow`."""
    name = command[0] if command else ""
    for module in FORKED.get(name, ()):
        importlib.import_module(module)
    if name == "scheduler":
        importlib.import_module("airflow.sdk.listener").get_listener_manager()
    if name in ("scheduler", "api-server"):  # tasks and the first pages do not wait for it
        importlib.import_module("headrace.execution.rehearsal").rehearse()


def main() -> None:
    """Entry point: the exit code is that of the component."""
    from airflow.__main__ import main as run

    end_quickly()
    preload(sys.argv[1:])
    run()


if __name__ == "__main__":
    main()
