from __future__ import annotations

import json
import logging
import math
import os
import signal
from pathlib import Path

import psutil
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from headrace.clusters import step_drivers
from headrace.clusters.step_drivers import Drivers, StepFigures, publish_steps
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import LeaseFolder, RunFolder, SiteFolder, StepFolder
from headrace.states import FailureClass, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import Progress, StepResult, StepSpec, StepStatus
from headrace.suites.records import SiteSummary, SuiteSummary
from support.factories import write_lease
from support.leases import submit_look
from support.rank_processes import DRIVERS
from support.small_disk import fill, small_disk
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_leftover_processes")


@pytest.fixture
def lease(tmp_path: Path) -> LeaseFolder:
    return _lease(tmp_path)


def _lease(tmp_path: Path) -> LeaseFolder:
    return write_lease(SiteFolder(tmp_path).lease("demo-cpu-1"), role_name="cpu")


def _hold_drivers(folder: StepFolder) -> None:
    """Drivers of the step wait as they begin: the recipe is a pipe that nobody writes to.

    Otherwise one may have ended before a busy machine lets the test go on.
    """
    spec = read_record(folder.spec, StepSpec)
    recipe = RunFolder(Path(spec.run_folder)).recipe
    recipe.unlink()
    os.mkfifo(recipe)


def _tick_until_done(drivers: Drivers) -> None:
    def done() -> bool:
        drivers.check()
        return drivers.num_running == 0

    wait_until(done, 60, "the drivers to end")


def test_runs_each_step_once_and_records_the_exit(lease: LeaseFolder) -> None:
    """Without a ready lease the probe fails, in words; the driver itself ends in good order."""
    first, second = submit_look(lease, "first"), submit_look(lease, "second")
    drivers = Drivers(lease, os.environ)
    drivers.check()
    assert drivers.num_running == 2
    _tick_until_done(drivers)
    for folder in (first, second):
        assert json.loads(folder.exit.read_text())["code"] == 0
        result = mailbox.outcome(folder)
        assert result.state is StepState.LOST
        assert result.failure.failure_class is FailureClass.LOST
        assert "not ready" in result.failure.message
    again = Drivers(lease, os.environ)
    again.check()
    assert again.num_running == 0


def test_a_step_whose_host_was_killed_is_not_run_twice(lease: LeaseFolder) -> None:
    """pains 6: the driver died with its host; the step ends as lost, never twice."""
    folder = submit_look(lease)
    write_record(folder.status, StepStatus(state=StepState.RUNNING))
    drivers = Drivers(lease, os.environ)
    drivers.check()
    assert drivers.num_running == 0
    result = mailbox.outcome(folder)
    assert result.state is StepState.LOST


def test_a_driver_that_ignores_the_cancel_is_killed(lease: LeaseFolder) -> None:
    folder = submit_look(lease)
    _hold_drivers(folder)
    drivers = Drivers(lease, os.environ, cancel_grace_s=0.2)
    drivers.check()
    (driver,) = _started(folder)
    driver.suspend()
    mailbox.request_cancel(folder, "asked in a test")
    _tick_until_done(drivers)
    assert json.loads(folder.exit.read_text())["code"] == -signal.SIGKILL
    result = mailbox.outcome(folder)
    assert result.state is StepState.CANCELLED


def test_end_all_leaves_no_process(lease: LeaseFolder) -> None:
    folder = submit_look(lease)
    _hold_drivers(folder)
    drivers = Drivers(lease, os.environ)
    drivers.check()
    assert _started(folder)
    drivers.end_all("its owner has gone", grace_s=2.0)
    assert not _drivers_of(folder)
    assert folder.exit.exists()
    assert drivers.num_running == 0
    result = mailbox.outcome(folder)
    assert result.state is StepState.LOST
    assert result.failure.message == "Its lease ended while it ran: its owner has gone"


def test_the_end_of_a_driver_is_recorded_when_a_full_disk_has_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.clusters.step_drivers")

    def has_noticed() -> bool:
        # the fork server reports an exit a moment after the process is gone
        drivers.check()
        return "driver ended" in caplog.text

    with small_disk(tmp_path / "disk", "256k") as disk:
        folder = submit_look(_lease(disk))
        _hold_drivers(folder)
        drivers = Drivers(LeaseFolder(folder.path.parent.parent), os.environ)
        drivers.check()
        filler = fill(disk)
        mailbox.request_cancel(folder, "asked in a test")
        (driver,) = _started(folder)
        driver.kill()
        wait_until(has_noticed, 30, "the end of the driver to be noticed")
        assert drivers.num_running == 1
        assert not folder.exit.exists()
        filler.unlink()
        drivers.check()
        assert drivers.num_running == 0
        result = mailbox.outcome(folder)
        assert result.state is StepState.CANCELLED


def test_a_driver_that_dies_leaves_a_word(lease: LeaseFolder) -> None:
    folder = submit_look(lease)
    _hold_drivers(folder)
    drivers = Drivers(lease, os.environ)
    drivers.check()
    (driver,) = _started(folder)
    driver.kill()
    _tick_until_done(drivers)
    result = mailbox.outcome(folder)
    assert "signal 9" in result.failure.message


def test_drivers_are_forked_from_a_process_that_was_there_before(
    lease: LeaseFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When that one dies, its drivers do, and the next step gets another; none is left behind."""
    drivers = Drivers(lease, {**os.environ, "WORD": "of the lease"})
    monkeypatch.setenv("WORD", "set since for workers")
    drivers.warm_up()
    (server,) = _servers()
    first = submit_look(lease, "first")
    _hold_drivers(first)
    drivers.check()
    (driver,) = _started(first)
    assert (driver.ppid(), driver.environ()["WORD"]) == (server.pid, "of the lease")
    server.kill()
    _tick_until_done(drivers)
    result = mailbox.outcome(first)
    assert "signal 9" in result.failure.message
    second = submit_look(lease, "second")
    _hold_drivers(second)
    drivers.check()
    (driver,) = _started(second)
    (another,) = _servers()
    assert (driver.ppid(), driver.environ()["WORD"]) == (another.pid, "of the lease")
    assert another != server
    drivers.end_all("its owner has gone")
    assert not _drivers_of(second)


def _started(folder: StepFolder) -> list[psutil.Process]:
    """Its driver, which is there when the server has imported all."""
    return wait_until(lambda: _drivers_of(folder), 60, "the driver")


def _drivers_of(folder: StepFolder) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == f"driver {folder.number}" and process.status() != psutil.STATUS_ZOMBIE
    ]


def _servers() -> list[psutil.Process]:
    """Processes to fork from; one that has just been started has no command line at first."""
    return wait_until(
        lambda: [child for child in psutil.Process().children() if DRIVERS in child.cmdline()],
        10,
        "a process to fork drivers from",
    )


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


def test_each_site_of_a_suite_has_figures(tmp_path):
    lease, run = LeaseFolder(tmp_path / "lease"), RunFolder(tmp_path / "run")
    lease.steps.mkdir(parents=True)
    folder = _submitted(lease, "sites", run_folder=str(run.path))
    write_record(folder.status, StepStatus(state=StepState.RUNNING))
    registry = CollectorRegistry()
    registry.register(StepFigures(lease))
    assert not any("site=" in line for line in _lines(registry))  # not planned yet
    box = SiteSummary(site="box", state="open", running=2, assigned=1, ended=4, usd=1.5, eta_s=60)
    lab = SiteSummary(site="lab", state="closed")
    write_record(run.summary, SuiteSummary(total=9, sites=(box, lab)))
    found = [line for line in _lines(registry) if "site=" in line]
    assert len(found) == 8
    for line, value in (
        ('trials{run="r",site="box",state="running",step="sites"}', 2.0),
        ('trials{run="r",site="box",state="ended",step="sites"}', 4.0),
        ('trials{run="r",site="lab",state="ended",step="sites"}', 0.0),
        ('usd{run="r",site="box",step="sites"}', 1.5),
        ('eta_seconds{run="r",site="box",step="sites"}', 60.0),
    ):
        assert f"headrace_step_site_{line} {value}" in found


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


def _submitted(lease, name, run_folder="/nowhere"):
    spec = StepSpec(
        key=f"r/{name}/1", kind=name, run_id="r", name=name, attempt=1, run_folder=run_folder
    )
    return mailbox.submit(lease, spec)
