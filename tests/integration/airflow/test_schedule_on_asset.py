"""Training that starts by itself when a new version of a dataset has been packed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.states import StepState
from headrace_airflow.assets import dataset_asset
from support.airflow_service import ARRIVALS, DAG_ID, PACK_DAG_ID, SITE, AirflowService
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(600)]


def test_packing_a_new_version_starts_one_training_on_it(airflow_service: AirflowService):
    """The shared Airflow runs with `HEADRACE_TRAIN_SCHEDULE=arrivals`."""
    packing = airflow_service.trigger(ARRIVALS, dag_id=PACK_DAG_ID)
    assert airflow_service.wait_end(packing, dag_id=PACK_DAG_ID) == "success"
    packed = _outputs(airflow_service, packing, PACK_DAG_ID, "pack")
    assert not packed["reused"]

    started = wait_until(lambda: _asset_runs(airflow_service), 120.0, "training to start")
    assert len(started) == 1
    dag_run = started[0]["dag_run_id"]
    assert airflow_service.wait_end(dag_run) == "success"
    run_id = airflow_service.wait_for_run(dag_run)
    run = airflow_service.run(run_id)
    assert (run.request.recipe, run.request.site) == (ARRIVALS, SITE)
    assert airflow_service.ledger.run(run_id).state is StepState.SUCCEEDED
    found = _outputs(airflow_service, dag_run, DAG_ID, "pack")
    assert found["reused"]
    assert found["dataset"] == packed["dataset"]
    (event,) = airflow_service.api.triggering_events(DAG_ID, dag_run)
    assert event["uri"] == dataset_asset(ARRIVALS).uri
    assert event["extra"]["fingerprint"] == packed["fingerprint"]

    again = airflow_service.trigger(ARRIVALS, dag_id=PACK_DAG_ID)
    assert airflow_service.wait_end(again, dag_id=PACK_DAG_ID) == "success"
    assert _outputs(airflow_service, again, PACK_DAG_ID, "pack")["reused"]
    assert len(airflow_service.api.asset_events(dataset_asset(ARRIVALS).uri)) == 1
    assert len(_asset_runs(airflow_service)) == 1


def _asset_runs(service: AirflowService) -> list[dict[str, Any]]:
    found = service.asked(lambda: service.api.runs(DAG_ID))
    return [run for run in found if run["run_type"] == "asset_triggered"]


def _outputs(service: AirflowService, dag_run: str, dag_id: str, step: str) -> dict[str, Any]:
    run_id = service.wait_for_run(dag_run, dag_id)
    return dict(service.ledger.run(run_id).outputs[step])
