"""Metrics, traces and lineage of runs, as their collectors get them."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
from airflow.sdk._shared.observability.traces import configure_otel
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import NoStatsLogger, get_stats_factory
from airflow.utils.state import TaskInstanceState
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.uuid import generate_new_uuid
from opentelemetry import metrics, trace

from headrace.execution import step_attempts
from headrace.files.manifest import Manifest
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace_airflow import operators, run_operators
from headrace_airflow.lineage import _name
from headrace_airflow.operators import PackOperator, StepOperator
from headrace_airflow.run_operators import FinishRunOperator
from support.ledger_rows import machine_row
from support.otlp import Collector, attributes, collecting
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.training import write_blobs

CONTEXT = {
    "ti": SimpleNamespace(
        dag_id="d",
        run_id="r",
        task_id="t",
        try_number=1,
        max_tries=4,
        xcom_push=lambda *_: None,
        xcom_pull=lambda **_: None,
    ),
    "dag_run": SimpleNamespace(dag_id="d", run_id="r", triggering_user_name="ann"),
}
TAGS = {"recipe": "digits", "site": "laptop"}


@pytest.fixture(scope="module")
def otlp():
    """The collector that Airflow's settings name, as a task's process reads them."""
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        patch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
        patch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        patch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        patch.setenv("OTEL_TRACES_EXPORTER", "otlp_proto_http")
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
        configure_otel(conf)
        yield collector
        trace.get_tracer_provider().shutdown()
        metrics.get_meter_provider().shutdown()
        atexit.unregister(flush_otel_metrics)
        stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def flush() -> None:
    """As at the end of a task."""
    metrics.get_meter_provider().force_flush()
    trace.get_tracer_provider().force_flush()


@pytest.fixture
def run(headrace_home):
    return make_run()


def complete(run, step: str, lease_id: str) -> None:
    """Have an operator collect what its first attempt has given."""
    folder = run.lease_folder(lease_id).step(1)
    operator = StepOperator(task_id="t", run_id=run.run_id, step=step)
    blank = {"num_before": 0, "is_ready": False, "unopened": [], "is_revived": False}
    operator.execute_complete(CONTEXT, None, {**blank, "ticket": [step, 1, str(folder.path)]})


def test_machines_steps_runs_and_what_they_cost(run, otlp: Collector, monkeypatch):
    lease_id = lease_on_disk(run, "gpu")
    lease = open_ledger().lease(lease_id)
    at = lease.created_at
    open_ledger().put_machines(
        [machine_row(lease_id=lease_id, usd_per_hour=2.0, billed_s=5400.0, ended_at=at)]
    )
    lease_view = SimpleNamespace(dashboard_url="http://127.0.0.1:8787", waits_for="")
    found = SimpleNamespace(final=True, lease=lease_view)
    monkeypatch.setattr(step_attempts, "look", lambda *_: found)

    def note_ready(*_):
        open_ledger().set_lease_state(lease_id, LeaseState.READY, ready_at=at + 90)

    monkeypatch.setattr(operators.run_leases, "note_ready", note_ready)
    used = AttemptUsage(samples=36_000, train_s=60.0, data_wait_s=15.0, gpu_use=0.75)
    ended = StepResult(state=StepState.SUCCEEDED, started_at=at, finished_at=at + 120, usage=used)
    monkeypatch.setattr(step_attempts, "collect", lambda *_: ended)
    complete(run, "train", lease_id)

    times = {"created_at": at + 90, "started_at": at + 91}
    cause = {"failure_class": FailureClass.PREEMPTED, "message": "taken"}
    lost = {"state": StepState.PREEMPTED, "finished_at": at + 100, **cause}
    attempt_row_of(run, "train", lease_id, **times, **lost)
    again = {"attempt": 2, "key": "again", "state": StepState.SUCCEEDED, "finished_at": at + 220}
    attempt_row_of(run, "train", lease_id, **{**times, "created_at": at + 101, **again})
    monkeypatch.setattr(run_operators, "task_states", lambda *_: {"pack": "failed"})
    task = trace.get_tracer("airflow").start_as_current_span("worker.finish")
    with pytest.raises(AirflowFailException), task as worker:
        FinishRunOperator(task_id="finish", run_id=run.run_id).execute(CONTEXT)
    flush()

    assert_told(otlp)
    spans = otlp.spans
    whole, step = spans["headrace.run"], spans["headrace.step train"]
    first, second = spans["headrace.attempt 1"], spans["headrace.attempt 2"]
    assert whole.parent_span_id == worker.get_span_context().span_id.to_bytes(8, "big")
    assert step.parent_span_id == whole.span_id
    assert {first.parent_span_id, second.parent_span_id} == {step.span_id}
    assert len({each.trace_id for each in (whole, step, first, second)}) == 1
    assert attributes(whole).items() >= {
        "headrace.run_id": run.run_id, "headrace.site": "laptop", "headrace.state": "failed"
    }.items()  # fmt: skip
    assert attributes(first)["headrace.failure_class"] == "preempted"
    assert attributes(second)["headrace.lease_id"] == lease_id
    assert (first.status.message, second.status.message) == ("taken", "")
    assert [round((each - at * 1e9) / 1e9, 3) for each in _times(step)] == [90, 220]
    assert [round((each - at * 1e9) / 1e9, 3) for each in _times(second)] == [101, 220]


def assert_told(otlp: Collector) -> None:
    tags, point = otlp.newest("airflow.headrace.lease.queue_wait")
    assert (tags, point.sum) == ({**TAGS, "role": "gpu"}, 90_000)
    of_step = {**TAGS, "step": "train"}
    told = {"samples_per_s": 600.0, "data_wait": 0.25, "gpu_use": 0.75}
    for name, value in told.items():
        tags, point = otlp.newest(f"airflow.headrace.step.{name}")
        assert (tags, point.as_double) == (of_step, value)
    tags, point = otlp.newest("airflow.headrace.step.duration")
    assert (tags, point.sum) == (of_step, 120_000)
    tags, _ = otlp.newest("airflow.headrace.step.attempts")
    assert tags == {**of_step, "state": "succeeded", "failure_class": "none"}
    tags, point = otlp.newest("airflow.headrace.run.cost_usd")
    assert (tags, point.as_double) == ({**TAGS, "state": "failed"}, 3.0)
    assert otlp.newest("airflow.headrace.run.duration")


def _times(span) -> tuple[int, int]:
    return span.start_time_unix_nano, span.end_time_unix_nano


def test_a_failed_attempt_is_counted_by_its_class(run, otlp: Collector, monkeypatch):
    lease_id = lease_on_disk(run, "cpu")
    failure = Failure(failure_class=FailureClass.DATA_ERROR, error="E", message="why")
    ended = StepResult(state=StepState.FAILED, failure=failure, started_at=0, finished_at=1)
    monkeypatch.setattr(step_attempts, "collect", lambda *_: ended)
    with pytest.raises(AirflowFailException):
        complete(run, "pack", lease_id)
    flush()
    tags, point = otlp.newest("airflow.headrace.step.attempts")
    assert tags == {**TAGS, "step": "pack", "state": "failed", "failure_class": "data_error"}
    assert point.as_int == 1


@pytest.fixture
def packed(tmp_path) -> Manifest:
    return write_blobs(tmp_path / "packed")


@pytest.fixture
def traced_run(headrace_home, tmp_path, packed) -> Run:
    """A traced_run whose steps have succeeded."""
    traced_run = make_run()
    lease_id = lease_on_disk(traced_run)
    outputs = {
        "pack": {"dataset": str(tmp_path / "packed")},
        "train": {"checkpoint": "/c/9", "best_checkpoint": "/c/5", "metrics": {"loss": 0.5}},
        "evaluate": {"report": "/r/report.html", "metrics": {"accuracy": 0.9, "per": [1]}},
    }
    for step, given in outputs.items():
        ended = {"state": StepState.SUCCEEDED, "finished_at": 1.0, "outputs": given}
        attempt_row_of(traced_run, step, lease_id, **ended)
    return traced_run


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


def test_packing_leads_from_samples_to_a_dataset(traced_run, packed, tmp_path):
    event = event_of(PackOperator(task_id="pack", run_id=traced_run.run_id), tmp_path)
    assert event["eventType"] == "COMPLETE"
    assert names(event["inputs"]) == [("file", traced_run.recipe.dataset.source)]
    (given,) = event["outputs"]
    assert names([given]) == [("file", str(tmp_path / "packed"))]
    fields = [(each["name"], each["type"]) for each in given["facets"]["schema"]["fields"]]
    assert fields == [("array", "float32[8]"), ("label", "int64")]
    assert given["facets"]["version"]["datasetVersion"] == packed.fingerprint
    statistics = given["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"]) == (91, packed.num_bytes)
    facet = event["run"]["facets"]["headrace"]
    assert (facet["runId"], facet["recipe"], facet["step"]) == (traced_run.run_id, "digits", "pack")


def test_training_leads_from_the_dataset_to_a_model_and_evaluation_to_a_report(
    traced_run, packed, tmp_path
):
    train = event_of(
        StepOperator(task_id="train", step="train", run_id=traced_run.run_id), tmp_path
    )
    (read,) = train["inputs"]
    assert read["facets"]["version"]["datasetVersion"] == packed.fingerprint
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 91
    assert names(train["outputs"]) == [("file", "/c/9"), ("file", "/c/5")]
    assert train["run"]["facets"]["headrace"]["metrics"] == {"loss": 0.5}
    (tmp_path / "events").unlink()
    judge = StepOperator(task_id="evaluate", step="evaluate", run_id=traced_run.run_id)
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
