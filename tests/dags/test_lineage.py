"""What OpenLineage is told, by its own provider and its transport to files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.utils.state import TaskInstanceState
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.uuid import generate_new_uuid

from headrace.files.manifest import Manifest
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace_airflow.lineage import _name
from headrace_airflow.operators import PackOperator, StepOperator
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.training import write_blobs


@pytest.fixture
def packed(tmp_path) -> Manifest:
    return write_blobs(tmp_path / "packed")


@pytest.fixture
def run(headrace_home, tmp_path, packed) -> Run:
    """A run whose steps have succeeded."""
    run = make_run()
    lease_id = lease_on_disk(run)
    outputs = {
        "pack": {"dataset": str(tmp_path / "packed")},
        "train": {"checkpoint": "/c/9", "best_checkpoint": "/c/5", "metrics": {"loss": 0.5}},
        "evaluate": {"report": "/r/report.html", "metrics": {"accuracy": 0.9, "per": [1]}},
    }
    for step, given in outputs.items():
        ended = {"state": StepState.SUCCEEDED, "finished_at": 1.0, "outputs": given}
        attempt_row_of(run, step, lease_id, **ended)
    return run


def event_of(task: StepOperator, folder: Path) -> dict:
    """The event that a task's success gives, as it lies in a file."""

    class DagRun:
        run_id = "manual"

    class TaskInstance:
        try_number = 1

    lineage = ExtractorManager().extract_metadata(
        DagRun, task, TaskInstanceState.SUCCESS, TaskInstance
    )
    config = FileConfig(log_file_path=str(folder / "events"), append=True)
    adapter = OpenLineageAdapter(OpenLineageClient(transport=FileTransport(config)))
    told = dict.fromkeys(("nominal_start_time", "nominal_end_time", "owners", "tags"))
    adapter.complete_task(
        run_id=str(generate_new_uuid()),
        job_name=task.task_id,
        end_time="2026-01-02T03:04:05+00:00",
        task=lineage,
        job_description=None,
        **told,
    )
    return json.loads((folder / "events").read_text())


def names(datasets: list[dict]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in datasets]


def test_packing_leads_from_samples_to_a_dataset(run, packed, tmp_path):
    event = event_of(PackOperator(task_id="pack", run_id=run.run_id), tmp_path)
    assert event["eventType"] == "COMPLETE"
    assert names(event["inputs"]) == [("file", run.recipe.dataset.source)]
    (given,) = event["outputs"]
    assert names([given]) == [("file", str(tmp_path / "packed"))]
    fields = [(each["name"], each["type"]) for each in given["facets"]["schema"]["fields"]]
    assert fields == [("array", "float32[8]"), ("label", "int64")]
    assert given["facets"]["version"]["datasetVersion"] == packed.fingerprint
    statistics = given["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (91, packed.num_bytes)
    facet = event["run"]["facets"]["headrace"]
    assert (facet["runId"], facet["recipe"], facet["step"]) == (run.run_id, "digits", "pack")


def test_training_leads_from_the_dataset_to_a_model_and_evaluation_to_a_report(
    run, packed, tmp_path
):
    train = event_of(StepOperator(task_id="train", step="train", run_id=run.run_id), tmp_path)
    (read,) = train["inputs"]
    assert read["facets"]["version"]["datasetVersion"] == packed.fingerprint
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 91
    assert names(train["outputs"]) == [("file", "/c/9"), ("file", "/c/5")]
    assert train["run"]["facets"]["headrace"]["metrics"] == {"loss": 0.5}
    (tmp_path / "events").unlink()
    judge = StepOperator(task_id="evaluate", step="evaluate", run_id=run.run_id)
    judged = event_of(judge, tmp_path)
    assert names(judged["inputs"][1:]) == [("file", "/c/9"), ("file", "/c/5")]
    assert names(judged["outputs"]) == [("file", "/r/report.html")]
    assert judged["run"]["facets"]["headrace"]["metrics"] == {"accuracy": 0.9}


def test_buckets_are_namespaces():
    assert _name("s3://scans/raw/2026") == ("s3://scans", "raw/2026")
    assert _name("hf://datasets/owner/name") == ("hf://datasets", "owner/name")
    assert _name("file:///data/x") == ("file", "/data/x")


def test_nothing_of_it_is_needed_where_it_is_not_installed():
    """DAG files and the plugin do without it: what asks for it imports it."""
    code = (
        "import sys\n"
        "sys.modules['openlineage'] = None\n"
        "import headrace_airflow.plugin, headrace_airflow.dag_parts\n"
        "assert 'headrace_airflow.lineage' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
