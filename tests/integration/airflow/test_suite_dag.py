"""A suite under Airflow: one task for all of its trials."""

from __future__ import annotations

import pytest

from headrace.states import StepState
from support.airflow_service import SITE, AirflowService

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(600)]

_DAG_ID = "headrace_suite"


def test_a_suite_is_eight_tasks_and_cleared_it_runs_no_trial_again(airflow_service: AirflowService):
    """Pains 1, 2, 3: the number of trials is not one of tasks."""
    words = [
        "model=null",
        "train.function._target_=objectives.value",
        "train.function.x=1,2",
        "seed=range(0,3)",
    ]
    dag_run = airflow_service.trigger("held", overrides=words, dag_id=_DAG_ID)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert set(airflow_service.task_states(dag_run, _DAG_ID).values()) == {"success"}
    assert len(airflow_service.tasks(dag_run, _DAG_ID)) == 8
    run_id = airflow_service.wait_for_run(dag_run, _DAG_ID)
    trials = airflow_service.ledger.trials(run_id)
    assert len(trials) == 6
    assert {trial.state for trial in trials} == {StepState.SUCCEEDED}
    journal = airflow_service.run(run_id).folder.journal.read_bytes()

    airflow_service.api.clear(_DAG_ID, dag_run, ["suite"], downstream=True)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert airflow_service.run(run_id).folder.journal.read_bytes() == journal
    assert airflow_service.run(run_id).site.name == SITE
    airflow_service.assert_books_closed(run_id)
