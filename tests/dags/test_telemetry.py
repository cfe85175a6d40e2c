"""Metrics and traces of runs, as a collector of OpenTelemetry gets them by Airflow's settings."""

from __future__ import annotations

import atexit
from types import SimpleNamespace

import pytest
from airflow.sdk._shared.observability.metrics.otel_logger import flush_otel_metrics
from airflow.sdk._shared.observability.traces import configure_otel
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import NoStatsLogger, get_stats_factory
from opentelemetry import metrics, trace

from headrace.execution import step_attempts
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps.mailbox import Failure, StepResult
from headrace_airflow import operators, run_operators
from headrace_airflow.operators import StepOperator
from headrace_airflow.run_operators import FinishRunOperator
from support.ledger_rows import machine_row
from support.otlp import Collector, attributes, collecting
from support.runs import attempt_row_of, lease_on_disk, make_run

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
    monkeypatch.setattr(run_operators, "task_states", lambda *_: {"pack": "success"})
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
