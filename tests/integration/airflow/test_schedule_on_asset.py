"""Training that starts by itself when a new version of a dataset has been packed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.states import StepState
from headrace_airflow.assets import dataset_asset, model_asset
from support.airflow_service import ARRIVALS, DAG_ID, PACK_DAG_ID, SITE, AirflowService
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_packing_a_new_version_starts_one_training_on_it(airflow_service: AirflowService):
    """The shared Airflow runs with `HEADRACE_TRAIN_SCHEDULE=arrivals`.

    What is packed already is packed no second time, asked for by `airflow` in a shell.

    Nothing happens to that training: one try a task, one attempt a step, one launch of the ranks.
    """
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
    _assert_nothing_was_done_twice(airflow_service, dag_run, run_id)
    found = _outputs(airflow_service, dag_run, DAG_ID, "pack")
    assert found["reused"]
    assert found["dataset"] == packed["dataset"]
    (event,) = airflow_service.api.triggering_events(DAG_ID, dag_run)
    assert event["uri"] == dataset_asset(ARRIVALS).uri
    assert event["extra"]["fingerprint"] == packed["fingerprint"]
    trained = _outputs(airflow_service, dag_run, DAG_ID, "train")
    (model,) = [
        event["extra"]
        for event in airflow_service.api.asset_events(model_asset(ARRIVALS).uri)
        if event["extra"]["run"] == run_id
    ]
    assert model["dataset"] == packed["fingerprint"]
    assert model["checkpoint"] == trained["checkpoint"]
    assert model["metrics"].keys() >= trained["metrics"].keys()

    again = _trigger_in_a_shell(airflow_service)
    assert airflow_service.wait_end(again, dag_id=PACK_DAG_ID) == "success"
    assert _outputs(airflow_service, again, PACK_DAG_ID, "pack")["reused"]
    airflow_service.assert_books_closed(airflow_service.wait_for_run(again, PACK_DAG_ID))
    assert len(airflow_service.api.asset_events(dataset_asset(ARRIVALS).uri)) == 1
    assert len(_asset_runs(airflow_service)) == 1


def _trigger_in_a_shell(service: AirflowService) -> str:
    """Have `airflow` ask for the packing once more; gives the id of the DAG run."""
    script = f"""
        set -euo pipefail
        eval "$(headrace env)"
        airflow dags trigger {PACK_DAG_ID} --run-id from-a-shell \
            --conf '{{"recipe": "{ARRIVALS}", "site": "{SITE}"}}'
    """
    environment = {
        **os.environ,
        "HEADRACE_HOME": str(service.home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    told = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return "from-a-shell"


def _assert_nothing_was_done_twice(service: AirflowService, dag_run: str, run_id: str) -> None:
    tasks = service.tasks(dag_run).values()
    assert {task["try_number"] for task in tasks} == {1}
    view = service.overview(run_id)
    assert view.state is StepState.SUCCEEDED
    assert {(step.name, step.attempt) for step in view.steps} >= {("stage", 1), ("train", 1)}
    assert {step.attempt for step in view.steps} == {1}
    status = service.step_status(run_id, "train")
    assert status.progress.done == status.progress.total
    (train,) = [step for step in view.steps if step.name == "train"]
    assert train.restarts == ()
    events = (Path(train.folder) / "events.jsonl").read_text()
    assert events.count('"event": "launch"') == 1


def _asset_runs(service: AirflowService) -> list[dict[str, Any]]:
    found = service.asked(lambda: service.api.runs(DAG_ID))
    return [run for run in found if run["run_type"] == "asset_triggered"]


def _outputs(service: AirflowService, dag_run: str, dag_id: str, step: str) -> dict[str, Any]:
    run_id = service.wait_for_run(dag_run, dag_id)
    return dict(service.ledger.run(run_id).outputs[step])
