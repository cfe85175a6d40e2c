"""Metrics and traces of runs by Airflow's own means; nothing if its settings disable these.

Metrics are sent when a lease is ready, a step is collected or a run has ended, the spans of a run
at its end: no process of headrace has to live as long as the work.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from airflow.sdk.observability import stats
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import AttemptRecord, LeaseRecord, RunRecord
from headrace.runs.costs import run_cost
from headrace.runs.runs import Run
from headrace.states import StepState
from headrace.steps.mailbox import StepResult

_NANO = 1e9

_tracer = trace.get_tracer("headrace")


def tell_lease(run: Run, lease_id: str) -> None:
    """Send how long the machines of a ready lease were waited for."""
    for lease in open_ledger().leases(run_id=run.run_id):
        if lease.lease_id == lease_id and lease.ready_at is not None:
            tags = {**_tags(run), "role": lease.role}
            _duration("headrace.lease.queue_wait", lease.ready_at - lease.created_at, tags)


def tell_step(run: Run, step: str, result: StepResult) -> None:
    """Send how an attempt at a step has ended, how long it took, and its use of machines."""
    tags = {**_tags(run), "step": step}
    failure = result.failure.failure_class.value if result.failure else "none"
    ending = {**tags, "state": result.state.value, "failure_class": failure}
    stats.incr("headrace.step.attempts", tags=ending)
    _duration("headrace.step.duration", result.finished_at - result.started_at, tags)
    for name, value in _figures(result.usage or AttemptUsage()).items():
        if value is not None:
            stats.gauge(f"headrace.step.{name}", value, tags=tags)


def tell_run(run: Run) -> None:
    """Send how long an ended run took, what it cost, and its spans: run, steps, attempts.

    The trace is that of the DAG run; times are from the ledger.
    """
    ledger = open_ledger()
    record, leases = ledger.run(run.run_id), ledger.leases(run_id=run.run_id)
    tags = {**_tags(run), "state": record.state.value}
    _duration("headrace.run.duration", (record.finished_at or 0) - record.created_at, tags)
    cost = run_cost(run.run_id)
    if cost is not None:
        stats.gauge("headrace.run.cost_usd", cost.usd, tags=tags)
    if trace.get_current_span().is_recording():
        _spans(record, ledger.attempts(run.run_id), {row.lease_id: row for row in leases})


def _tags(run: Run) -> dict[str, str]:
    return {"recipe": run.recipe.name, "site": run.site.name}


def _duration(name: str, seconds: float, tags: dict[str, str]) -> None:
    stats.timing(name, timedelta(seconds=seconds), tags=tags)


def _figures(usage: AttemptUsage) -> dict[str, float | None]:
    train_s = usage.train_s
    return {
        "samples_per_s": usage.samples / train_s if usage.samples and train_s else None,
        "data_wait": usage.data_wait_s / train_s if usage.data_wait_s and train_s else None,
        "gpu_use": usage.gpu_use,
    }


def _spans(
    run: RunRecord, attempts: Sequence[AttemptRecord], leases: Mapping[str, LeaseRecord]
) -> None:
    about: dict[str, str | None] = {
        "headrace.run_id": run.run_id,
        "headrace.recipe": run.recipe_name,
        "headrace.site": run.site_name,
    }
    with _span("headrace.run", run, about):
        for step in dict.fromkeys(row.step for row in attempts):
            made = [row for row in attempts if row.step == step]
            about |= {"headrace.step": step}
            with _span(f"headrace.step {step}", made[0], about, until=made[-1]):
                for row in made:
                    lease = leases[row.lease_id]
                    own = {
                        "headrace.attempt": str(row.attempt),
                        "headrace.lease_id": lease.lease_id,
                        "headrace.role": lease.role,
                        "headrace.failure_class": row.failure_class and row.failure_class.value,
                    }
                    with _span(f"headrace.attempt {row.attempt}", row, about | own):
                        pass


@contextmanager
def _span(
    name: str,
    row: RunRecord | AttemptRecord,
    attributes: Mapping[str, str | None],
    until: AttemptRecord | None = None,
) -> Iterator[None]:
    """Open a span from a row's creation to its end, or that of `until`, within the current one."""
    last = until or row
    with _tracer.start_as_current_span(
        name,
        start_time=_nano(row.created_at),
        attributes={key: value for key, value in attributes.items() if value is not None},
        end_on_exit=False,
    ) as span:
        span.set_attribute("headrace.state", last.state.value)
        if last.state is not StepState.SUCCEEDED:
            span.set_status(Status(StatusCode.ERROR, getattr(last, "message", "")))
        yield
        span.end(_nano(last.finished_at or time.time()))


def _nano(at: float) -> int:
    return round(at * _NANO)
