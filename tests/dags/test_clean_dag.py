"""The DAG `headrace_clean`: daily if a site has a `retention`, which its task applies."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from airflow.dag_processing.dagbag import DagBag

from headrace.ledger.ledger import open_ledger
from headrace.states import StepState
from headrace_airflow.run_operators import CleanOperator, MistakeError
from support.runs import make_run

FILE = Path(__file__).parents[2] / "dags" / "headrace_clean.py"


@pytest.mark.usefixtures("own_account")
def test_it_removes_what_the_retention_of_sites_lets_go(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    run = make_run()
    run.folder.checkpoints.mkdir()
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, time.time())
    unused = DagBag(dag_folder=str(FILE), bundle_name="headrace").dags["headrace_clean"]
    assert unused.schedule is None
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "laptop.yaml").write_text("retention: {older_than: 0s}")
    found = DagBag(dag_folder=str(FILE), bundle_name="headrace")
    assert found.import_errors == {}
    dag = found.dags["headrace_clean"]
    assert dag.schedule == timedelta(days=1)
    assert (dag.max_active_runs, dag.is_paused_upon_creation, dag.catchup) == (1, False, False)
    assert [task.task_id for task in dag.tasks] == ["clean"]
    operator = CleanOperator(task_id="clean")
    operator.execute({})
    assert not run.folder.checkpoints.exists()
    operator.execute({})

    outputs = {"train": {"metrics": {"own_error_free": 0.9}}}
    open_ledger().finish_run(make_run().run_id, StepState.SUCCEEDED, time.time(), outputs)
    retention = "retention: {keep_best: [own_error_free]}"
    (headrace_home / "sites" / "laptop.yaml").write_text(retention)
    with pytest.raises(MistakeError, match="values of 'own_error_free' are better is unknown"):
        operator.execute({"ti": mock.Mock()})
