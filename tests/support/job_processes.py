"""Finds the processes of a running job, one kind at a time, so that tests can kill them."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from headrace.cli.airflow_server import marked
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.local import LEASE_ID
from headrace.files.atomic import read_record
from headrace_airflow.service import GENERATION_MARK
from support.airflow_service import AirflowService
from support.rank_processes import is_rank
from support.waiting import wait_until

_SUPERVISES = "airflow worker -- LocalExecutor: "
_ID_LENGTH = 24
"""So much of the 36 characters of an id tells apart all of a test session."""


def component(service: AirflowService, name: str) -> psutil.Process:
    """A component of Airflow: `scheduler`, `triggerer`, `api-server` or `dag-processor`."""
    supervisor = psutil.Process(service.server.process.pid)

    def found() -> psutil.Process | None:
        for child in supervisor.children():
            if (marked(child, GENERATION_MARK) or "").startswith(f"{name}/"):
                return child
        return None

    process = wait_until(found, 60.0, f"Airflow's {name}")
    assert process is not None
    return process


def task_supervisor(service: AirflowService, task_instance: str) -> psutil.Process | None:
    """The process that watches over a task which runs right now; None when it does not run."""
    workers = component(service, "scheduler").children()
    return next((worker for worker in workers if _works_on(worker, task_instance)), None)


def task_runner(service: AirflowService, task_instance: str) -> psutil.Process | None:
    """The process in which a task's own code runs right now; None when it does not run."""
    supervisor = task_supervisor(service, task_instance)
    try:
        return next(iter(supervisor.children()), None) if supervisor is not None else None
    except psutil.NoSuchProcess:
        return None


def _works_on(worker: psutil.Process, task_instance: str) -> bool:
    title = _title(worker)  # the end of a long title is cut off
    number = title.removeprefix(_SUPERVISES)
    return title != number and len(number) > _ID_LENGTH and task_instance.startswith(number)


def _title(process: psutil.Process | None) -> str:
    try:
        return " ".join(process.cmdline()).strip() if process is not None else ""
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def lease_host(service: AirflowService, run_id: str, role: str = "gpu") -> psutil.Process:
    """The host of the newest lease that a run has of a role."""
    record = service.ledger.latest_lease(f"{run_id}/{role}")
    assert record is not None, f"run {run_id} has no lease of role {role}"
    host = read_record(service.run(run_id).lease_folder(record.lease_id).host, HostRecord)
    assert host is not None, f"lease {record.lease_id} has no host"
    return psutil.Process(host.process.pid)


def step_drivers(service: AirflowService, run_id: str) -> list[psutil.Process]:
    """The processes that drive a step of the run."""
    return _of_run(service, run_id, lambda line: "headrace.steps.run" in line)


def ranks(service: AirflowService, run_id: str) -> list[psutil.Process]:
    """The run's training ranks."""
    return [each for each in lease_processes(service, run_id) if is_rank(each)]


def lease_processes(service: AirflowService, run_id: str) -> list[psutil.Process]:
    """Every living process of every lease of a run."""
    return _of_run(service, run_id, lambda _line: True)


def _of_run(
    service: AirflowService, run_id: str, wanted: Callable[[str], bool]
) -> list[psutil.Process]:
    leases = {lease.lease_id for lease in service.ledger.leases(run_id=run_id)}
    return [
        process
        for process in psutil.process_iter()
        if marked(process, LEASE_ID) in leases and wanted(_title(process))
    ]
