"""The examples of the how-to run as they stand, in `$HEADRACE_HOME/dags`."""

from __future__ import annotations

import email
import re
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from headrace.states import StepState
from support.airflow_service import LONG_S, SITE, AirflowService
from support.runs import make_run
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

_DOCS = Path(__file__).parents[3] / "docs" / "how-to"
_IDS = {"nightly", "on_model", "short_training", "compare_rates"}
_SITE = re.compile(r"(?<=[\"'])laptop(?=[\"'])")


@pytest.fixture(scope="module")
def own(airflow_service: AirflowService) -> AirflowService:
    """An Airflow that has loaded the four examples, one wrong file, and one with an id of ours."""
    folder = airflow_service.home / "dags"
    first, *others = (_SITE.sub(SITE, code) for code in _examples("build-your-own-dags.md"))
    (policy,) = (code for code in _examples("run-under-airflow.md") if "def task_policy" in code)
    hour = (datetime.now(timezone.utc).hour + 12) % 24  # else it also begins by itself until 05:24
    first = first.replace('schedule="0 3 * * *"', f'schedule="0 {hour} * * *"')
    with_mails = f"{first}\n{policy}\nfor task in prepare.dag.tasks:\n    task_policy(task)\n"
    for number, code in enumerate([with_mails, *others]):
        (folder / f"example_{number}.py").write_text(code)
    (folder / "wrong.py").write_text("from airflow.sdk import DAG\nDAG(dag_id=undefined)\n")
    taken = "from airflow.sdk import DAG\ntaken = DAG(dag_id='headrace_train', schedule=None)\n"
    (folder / "taken.py").write_text(taken)
    wait_until(lambda: airflow_service.api.dag_ids() >= _IDS, 120, "the DAGs", poll_s=1)
    return airflow_service


def _examples(page: str) -> list[str]:
    blocks = (_DOCS / page).read_text().split("```python\n")[1:]
    return [block.partition("```")[0] for block in blocks]


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
    (mail,) = wait_until(lambda: list(own.mails), 120, "the mail of `finish`")
    assert "Subject: Done: digits on chaos" in mail
    text = email.message_from_string(mail).get_payload(0).get_payload(decode=True).decode()
    run_id = own.wait_for_run(nightly, "nightly")
    page = f"{own.url}/dags/nightly/runs/{quote(nightly)}/plugin/headrace-run"
    assert text == f"Run {run_id}: {page}"

    def looked() -> list[str]:
        ended = [run for run in own.api.runs("on_model") if run["state"] == "success"]
        return [run["dag_run_id"] for run in ended]

    (first, *_) = wait_until(looked, 120, "the task of the model", poll_s=1)
    extra = own.xcom(first, "look", "return_value", dag_id="on_model")
    assert "accuracy" in extra["metrics"]
    assert Path(extra["checkpoint"]).exists()


def test_a_site_with_a_retention_is_cleaned_by_a_schedule(airflow_service: AirflowService):
    service, dag_id = airflow_service, "headrace_clean"
    file = service.home / "sites" / "tidy.yaml"
    site = yaml.safe_load((service.home / "sites" / f"{SITE}.yaml").read_text())
    site |= {"name": "tidy", "folder": str(service.home / "tidy")}
    file.write_text(yaml.safe_dump(site))
    try:
        with service.settings():
            run = make_run(site="tidy")
            run.folder.checkpoints.mkdir()
            ended_at = time.time() - timedelta(days=2).total_seconds()
            service.ledger.finish_run(run.run_id, StepState.SUCCEEDED, ended_at)
        assert service.api.runs(dag_id) == []
        file.write_text(yaml.safe_dump(site | {"retention": {"older_than": "1d"}}))
        wait_until(lambda: not run.folder.checkpoints.exists(), LONG_S, "the files to go", poll_s=1)
        (dag_run,) = service.api.runs(dag_id)
        assert service.wait_end(dag_run["dag_run_id"], dag_id=dag_id) == "success"
        assert dag_run["run_type"] == "scheduled"
    finally:
        file.unlink()
