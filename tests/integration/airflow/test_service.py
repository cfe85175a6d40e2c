"""The Airflow that tests share: it runs the main job, and its questions are answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.states import StepState
from support.airflow_service import AirflowService

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_a_triggered_run_ends_well_and_is_found_in_the_ledger(airflow_service: AirflowService):
    dag_run = airflow_service.trigger(overrides=["trainer.max_epochs=1"])
    run_id = airflow_service.wait_for_run(dag_run)
    assert airflow_service.wait_end(dag_run) == "success"
    assert set(airflow_service.task_states(dag_run).values()) == {"success"}
    view = airflow_service.overview(run_id)
    assert view.state is StepState.SUCCEEDED
    assert [step.attempt for step in view.steps] == [1, 1, 1, 1]
    status = airflow_service.step_status(run_id, "train")
    assert status is not None
    assert status.progress.done == status.progress.total
    assert {task["try_number"] for task in airflow_service.tasks(dag_run).values()} == {1}
    events = (Path(view.steps[2].folder) / "events.jsonl").read_text()
    assert events.count('"event": "launch"') == 1
