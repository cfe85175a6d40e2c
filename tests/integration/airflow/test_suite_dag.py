"""A suite under Airflow: one task for all of its trials."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from headrace.states import StepState
from support.airflow_service import DAG_ID, OWN_DATA, SITE, AirflowService

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_DAG_ID = "headrace_suite"


def test_a_suite_is_four_tasks_and_cleared_it_runs_no_trial_again(airflow_service: AirflowService):
    """Pains 1, 2, 3: the number of trials is not one of tasks."""
    own_data = [airflow_service.trigger(OWN_DATA), _own_suite(airflow_service)]
    words = ["train.function.x=1,2", "seed=range(0,3)"]
    dag_run = airflow_service.trigger("objective", overrides=words, dag_id=_DAG_ID)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert set(airflow_service.task_states(dag_run, _DAG_ID).values()) == {"success"}
    assert len(airflow_service.tasks(dag_run, _DAG_ID)) == 4
    run_id = airflow_service.wait_for_run(dag_run, _DAG_ID)
    trials = airflow_service.ledger.trials(run_id)
    assert len(trials) == 6
    assert {trial.state for trial in trials} == {StepState.SUCCEEDED}
    journal = airflow_service.run(run_id).folder.journal.read_bytes()
    link = airflow_service.api.links(_DAG_ID, dag_run, "finish")["Run in headrace"]
    tab = f"/dags/{_DAG_ID}/runs/{quote(dag_run)}/plugin/headrace-run"
    assert link == f"{airflow_service.url}{tab}"
    told = airflow_service.api.page("run", dag_id=_DAG_ID, dag_run_id=dag_run)
    assert (told["run_id"], told["kind"], told["state"]) == (run_id, "suite", "succeeded")
    told_trials = {key: told["trials"][key] for key in ("total", "counts", "ended")}
    assert told_trials == {"total": 6, "counts": {"succeeded": 6}, "ended": 6}
    assert len(airflow_service.api.page("trials", id=run_id)["columns"]["number"]) == 6

    airflow_service.api.clear(_DAG_ID, dag_run, ["suite"], downstream=True)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert airflow_service.run(run_id).folder.journal.read_bytes() == journal
    assert airflow_service.run(run_id).site.name == SITE
    airflow_service.assert_books_closed(run_id)
    for dag_id, own in zip((DAG_ID, _DAG_ID), own_data, strict=True):
        _check_own_data(airflow_service, dag_id, own)


def _own_suite(airflow_service: AirflowService) -> str:
    words = ["train.function.x=1,2"]
    return airflow_service.trigger(OWN_DATA, overrides=words, dag_id=_DAG_ID)


def _check_own_data(airflow_service: AirflowService, dag_id: str, dag_run: str) -> None:
    """Without a dataset what packs and stages is skipped, and says why."""
    assert airflow_service.wait_end(dag_run, dag_id=dag_id) == "success"
    states = airflow_service.task_states(dag_run, dag_id)
    skipped = {task for task, state in states.items() if state == "skipped"}
    unneeded = {"stage", "evaluate"} if dag_id == DAG_ID else set()
    assert skipped == {"pack", *unneeded}, states
    assert {state for task, state in states.items() if task not in skipped} == {"success"}
    why = "Recipe 'own-data' has no step"
    log = airflow_service.task_log(dag_id, dag_run, "pack")
    assert f"{why} 'pack': it has no dataset, so nothing is packed or staged" in log
    plan = airflow_service.task_log(dag_id, dag_run, "prepare")
    assert "nothing is packed or staged" in plan
    run_id = airflow_service.wait_for_run(dag_run, dag_id)
    assert {lease.role for lease in airflow_service.ledger.leases(run_id=run_id)} == {"gpu"}
    page = airflow_service.api.page("run", dag_id=dag_id, dag_run_id=dag_run)
    assert [step["name"] for step in page["steps"]] == ["suite" if unneeded == set() else "train"]
    airflow_service.assert_books_closed(run_id)
