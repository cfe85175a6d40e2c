"""Runs one component of Airflow: `python -m headrace_airflow.component scheduler …`.

It does the same as `python -m airflow`, but ends quickly, see
`headrace.processes.identity.end_quickly`, and imports once what its forked processes need.
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
"""Modules that run Airflow's tasks, and imports of a DAG's first task."""

READ_FIRST = {
    "scheduler": (*_TASKS, *_DAG_FILES, "airflow.jobs.scheduler_job_runner"),
    "dag-processor": (*_DAG_FILES, "airflow.dag_processing.manager"),
    "triggerer": ("airflow.jobs.triggerer_job_runner",),
    "api-server": ("airflow.api_fastapi.main",),
}
"""Imports by component: its own, and those of its child processes."""


def preload(command: Sequence[str]) -> None:
    """Import what a component and its children use, by the arguments after `airflow`."""
    name = command[0] if command else ""
    for module in READ_FIRST.get(name, ()):
        importlib.import_module(module)
    if name == "scheduler":
        importlib.import_module("airflow.sdk.listener").get_listener_manager()
    if name in ("scheduler", "api-server"):  # tasks and the first pages do not wait for it
        importlib.import_module("headrace_airflow.warm_caches").warm_caches()


def main() -> None:
    """Entry point: the exit code is the component's.

    Imported objects stay. Collecting garbage among them takes the API server 0.7 s each time,
    without any answer, and a tenth of the start of all components.
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
