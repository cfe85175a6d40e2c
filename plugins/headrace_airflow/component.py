"""Runs one component of Airflow: `python -m headrace_airflow.component scheduler …`.

As `python -m airflow` does, but it ends quickly, see `headrace.processes.identity.end_quickly`, and
it imports and reads once what each of the processes that it forks would read anew.
"""

from __future__ import annotations

import gc
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

READ_FIRST = {
    "scheduler": (*_TASKS, *_DAG_FILES, "airflow.jobs.scheduler_job_runner"),
    "dag-processor": (*_DAG_FILES, "airflow.dag_processing.manager"),
    "triggerer": ("airflow.jobs.triggerer_job_runner",),
    "api-server": ("airflow.api_fastapi.main",),
}
"""By component, what itself and the tasks or the files of DAGs in its children are made of."""


def preload(command: Sequence[str]) -> None:
    """Import what a component and its children use, by the words after `airflow`."""
    name = command[0] if command else ""
    for module in READ_FIRST.get(name, ()):
        importlib.import_module(module)
    if name == "scheduler":
        importlib.import_module("airflow.sdk.listener").get_listener_manager()
    if name in ("scheduler", "api-server"):  # tasks and the first pages do not wait for it
        importlib.import_module("headrace_airflow.warm_caches").warm_caches()


def main() -> None:
    """Entry point: the exit code is that of the component.

    What is imported stays. To look for garbage in it takes the API server 0.7 s each time, in which
    nobody is answered, and a tenth of what all components need to start.
    """
    gc.disable()
    from airflow.__main__ import main as run

    end_quickly()
    preload(sys.argv[1:])
    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
