"""A suite of many trials under Airflow: its task instances, its Grid page, and the time it takes.

`pytest tests/benchmarks/suite_under_airflow.py -s` measures two thousand trials and prints the
figures. `make test` leaves it out, as it takes minutes. `HEADRACE_TRIALS` gives another number.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from playwright.sync_api import Page, expect

from headrace.states import StepState
from support.airflow_service import AirflowService
from support.browser import log_in, page

__all__ = ["page"]

pytestmark = [pytest.mark.airflow, pytest.mark.browser, pytest.mark.timeout(1800)]

_DAG_ID = "headrace_suite"
_MOST_TASKS = 12
_MOST_PAINT_S = 3.0

_NEXT_PAINT = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_neither_tasks_nor_the_grid_grow_with_the_trials(
    airflow_service: AirflowService, page: Page
):
    """Pains 1, 2, 3."""
    num_trials = int(os.environ.get("HEADRACE_TRIALS", "2000"))
    overrides = [f"train.function.x=range(0,{num_trials})"]
    began = time.monotonic()
    dag_run = airflow_service.trigger("objective", overrides=overrides, dag_id=_DAG_ID)
    state = airflow_service.wait_end(dag_run, 1500.0, _DAG_ID)
    total_s = time.monotonic() - began
    assert state == "success"
    run_id = airflow_service.wait_for_run(dag_run, _DAG_ID)
    trials = airflow_service.ledger.trials(run_id, limit=num_trials + 1)
    assert [trial.state for trial in trials] == [StepState.SUCCEEDED] * num_trials

    tasks = airflow_service.tasks(dag_run, _DAG_ID)
    assert len(tasks) <= _MOST_TASKS
    log_in(page, airflow_service.url, airflow_service.login)
    began = time.monotonic()
    page.goto(f"{airflow_service.url}/dags/{_DAG_ID}")
    expect(page.locator(f"[data-testid^='grid-{dag_run}-']")).to_have_count(len(tasks))
    page.evaluate(_NEXT_PAINT)
    paint_s = time.monotonic() - began
    figures = {"trials": num_trials, "tasks": len(tasks), "paint_s": paint_s, "total_s": total_s}
    print(json.dumps({**figures, "load": os.getloadavg()}))
    assert paint_s < _MOST_PAINT_S
