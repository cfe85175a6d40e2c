"""The examples of the how-to run as they stand, in `$HEADRACE_HOME/dags`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.airflow_service import SITE, AirflowService
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "build-your-own-dags.md"
_IDS = {"nightly", "on_model", "short_training", "compare_rates"}
_SIZE = re.compile(r"(?<=[\"'])laptop(?=[\"'])")


@pytest.fixture(scope="module")
def own(airflow_service: AirflowService) -> AirflowService:
    """An Airflow that has loaded the four examples, one wrong file, and one with an id of ours."""
    folder = airflow_service.home / "dags"
    blocks = _PAGE.read_text().split("```python\n")[1:]
    for number, block in enumerate(blocks):
        code = _SIZE.sub(SITE, block.partition("```")[0])
        (folder / f"example_{number}.py").write_text(code)
    (folder / "wrong.py").write_text("from airflow.sdk import DAG\nDAG(dag_id=undefined)\n")
    taken = "from airflow.sdk import DAG\ntaken = DAG(dag_id='headrace_train', schedule=None)\n"
    (folder / "taken.py").write_text(taken)
    wait_until(lambda: airflow_service.api.dag_ids() >= _IDS, 120, "the DAGs", poll_s=1)
    return airflow_service


def test_a_wrong_file_is_shown_and_harms_no_other(own: AirflowService):
    def errors() -> dict[str, str]:
        found = own.api._call("GET", "/api/v2/importErrors")["import_errors"]
        return {Path(each["filename"]).name: each["stack_trace"] for each in found}

    wait_until(lambda: errors().keys() == {"wrong.py", "taken.py"}, 120, "the errors", poll_s=1)
    assert "'undefined' is not defined" in errors()["wrong.py"]
    assert "Give the DAG another id" in errors()["taken.py"]
    file = own.api._call("GET", "/api/v2/dags/headrace_train")["fileloc"]
    assert Path(file).name == "headrace_train.py"


def test_the_four_examples_run(own: AirflowService):
    runs = {name: own.api.trigger(name, {}) for name in ("short_training", "compare_rates")}
    for dag_id, dag_run in runs.items():
        assert own.wait_end(dag_run, dag_id=dag_id) == "success", own.task_states(dag_run, dag_id)
    accuracy = own.xcom(runs["compare_rates"], "compare", "return_value", dag_id="compare_rates")
    assert set(accuracy) == {"slow", "fast"}
    assert all(0 <= each <= 1 for each in accuracy.values())

    nightly = own.api.trigger("nightly", {})
    assert own.wait_end(nightly, dag_id="nightly") == "success"
    assert own.task_states(nightly, "nightly")["evaluate"] == "success"

    def looked() -> list[str]:
        ended = [run for run in own.api.runs("on_model") if run["state"] == "success"]
        return [run["dag_run_id"] for run in ended]

    (first, *_) = wait_until(looked, 120, "the task of the model", poll_s=1)
    extra = own.xcom(first, "look", "return_value", dag_id="on_model")
    assert "accuracy" in extra["metrics"]
    assert Path(extra["checkpoint"]).exists()
