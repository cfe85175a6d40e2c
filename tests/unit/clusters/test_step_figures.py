"""Figures of a lease's steps for Prometheus."""

from __future__ import annotations

import math

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from headrace.clusters import step_drivers
from headrace.clusters.step_drivers import StepFigures, publish_steps
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder
from headrace.states import StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import Progress, StepResult, StepSpec, StepStatus


def test_running_steps_are_told_with_their_metrics(tmp_path):
    lease = LeaseFolder(tmp_path / "lease")
    lease.steps.mkdir(parents=True)
    progress = Progress(done=3, total=9, unit="steps", phase="epoch 1/3")
    metrics = {"val_loss": 0.25, 'a"b\n': math.inf}
    running = StepStatus(state=StepState.RUNNING, progress=progress, eta_s=4.5, metrics=metrics)
    write_record(_submitted(lease, "train").status, running)
    unknown = StepStatus(state=StepState.RUNNING, progress=Progress(done=1, unit="files"))
    write_record(_submitted(lease, "pack").status, unknown)
    ended = _submitted(lease, "stage")
    write_record(ended.status, running)
    write_record(ended.result, StepResult(state=StepState.SUCCEEDED, started_at=0, finished_at=1))
    died = _submitted(lease, "probe")
    write_record(died.status, running)
    died.exit.write_text("1")
    _submitted(lease, "evaluate")  # waits

    registry = CollectorRegistry()
    registry.register(StepFigures(lease))
    assert _lines(registry) == [
        'headrace_step_done{run="r",step="train",unit="steps"} 3.0',
        'headrace_step_done{run="r",step="pack",unit="files"} 1.0',
        'headrace_step_total{run="r",step="train",unit="steps"} 9.0',
        'headrace_step_eta_seconds{run="r",step="train"} 4.5',
        'headrace_step_metric{metric="val_loss",run="r",step="train"} 0.25',
        'headrace_step_metric{metric="a\\"b\\n",run="r",step="train"} +Inf',
    ]


def test_they_are_among_the_figures_of_the_process_where_the_package_is_installed(
    tmp_path, monkeypatch
):
    lease = LeaseFolder(tmp_path / "lease")
    lease.steps.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(step_drivers, "find_spec", lambda _: None)
        publish_steps(lease)
        assert b"headrace_step" not in generate_latest(REGISTRY)
    registered = []
    monkeypatch.setattr(REGISTRY, "register", registered.append)
    publish_steps(lease)
    (collector,) = registered
    assert next(family.name for family in collector.collect()) == "headrace_step_done"


def _lines(registry):
    told = generate_latest(registry).decode().splitlines()
    return [line for line in told if not line.startswith("#")]


def _submitted(lease, name):
    spec = StepSpec(
        key=f"r/{name}/1", kind=name, run_id="r", name=name, attempt=1, run_folder="/nowhere"
    )
    return mailbox.submit(lease, spec)
