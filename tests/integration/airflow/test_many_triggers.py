"""Many triggers at once, and two that want the same: SQLite bears it, nothing is done twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import StepError
from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from headrace.status.logs import log_files
from support import job_processes
from support.airflow_service import NARROW_LEASES, NARROW_SITE, PACK_DAG_ID, AirflowService
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_NUM_TRIGGERS = 9
"""More than Airflow runs tasks at once (8) and than the site gives leases."""
_CONF = {"recipe": "digits", "site": NARROW_SITE, "overrides": ["dataset.name=twins"]}


def test_triggers_at_once_all_end_well_pack_once_and_leave_nothing(
    airflow_service: AirflowService,
):
    """No lock error, no orphan row, never more leases than the site gives (pains 6, 12).

    All want the same dataset: one packs it, each other one waits for that, or finds it done.
    Whoever triggers again after a lost answer names the DAG run, and gets no second one.
    """
    most_leases = _MostLeases(airflow_service)
    with most_leases:
        dag_runs = _at_once(airflow_service, _NUM_TRIGGERS)
        assert len(set(dag_runs)) == _NUM_TRIGGERS
        with pytest.raises(StepError, match="Airflow answered 409"):
            airflow_service.api.trigger_as(PACK_DAG_ID, dag_runs[0], _CONF)
        ends = [airflow_service.wait_end(each, dag_id=PACK_DAG_ID) for each in dag_runs]
    assert ends == ["success"] * _NUM_TRIGGERS
    assert 1 <= most_leases.seen <= NARROW_LEASES
    run_ids = [airflow_service.wait_for_run(each, PACK_DAG_ID) for each in dag_runs]
    assert len(set(run_ids)) == _NUM_TRIGGERS
    keys = [row.key for row in airflow_service.ledger.runs(limit=1000)]
    assert [sum(dag_run in key for key in keys) for dag_run in dag_runs] == [1] * _NUM_TRIGGERS
    for run_id in run_ids:
        airflow_service.assert_books_closed(run_id)
        assert airflow_service.ledger.run(run_id).state is StepState.SUCCEEDED
        assert [row.attempt for row in airflow_service.ledger.attempts(run_id)] == [1]
        assert len(airflow_service.ledger.leases(run_id=run_id)) == 1
    outputs = [airflow_service.ledger.run(run_id).outputs["pack"] for run_id in run_ids]
    assert sorted(output["reused"] for output in outputs) == [False, *[True] * (_NUM_TRIGGERS - 1)]
    assert len({(output["dataset"], output["fingerprint"]) for output in outputs}) == 1
    logs = "".join(_driver_logs(airflow_service, run_id) for run_id in run_ids)
    assert logs.count("Packed 1797 samples") == 1
    wait_until(
        lambda: not any(job_processes.lease_processes(airflow_service, each) for each in run_ids),
        60.0,
        "the processes of all leases to end",
    )
    log = airflow_service.home / "airflow" / "logs" / "api-server.log"
    assert "database is locked" not in log.read_text(errors="replace")


class _MostLeases:
    """Looks again and again how many leases of the narrow site are open.

    Args:
        service: The Airflow whose ledger is looked at.
    """

    def __init__(self, service: AirflowService) -> None:
        self.seen = 0
        self._service = service
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            active = self._service.ledger.active_leases()
            self.seen = max(self.seen, sum(row.site_name == NARROW_SITE for row in active))


def _at_once(service: AirflowService, number: int) -> list[str]:
    """Trigger the packing from so many threads at the same moment."""
    barrier = threading.Barrier(number)

    def trigger(_index: int) -> str:
        barrier.wait()
        return service.api.trigger(PACK_DAG_ID, _CONF)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(trigger, range(number)))


def _driver_logs(service: AirflowService, run_id: str) -> str:
    with service.settings():
        attempts, leases = open_ledger().attempts(run_id), open_ledger().leases(run_id=run_id)
        found = [file for _, file in log_files(attempts, leases) if file.stem == "driver"]
    return "".join(file.read_text() for file in found)
