"""The step driver: every end becomes a result, user mistakes without a trace."""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import threading
import time

import pytest

from headrace.clusters.lease_records import HostRecord
from headrace.errors import DataError, StepCancelledError, StepError, UserCodeError, WorkerLostError
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import LeaseFolder, RunFolder, StepFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import load_recipe, load_site
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import StepResult, StepSpec, StepStatus
from headrace.steps.run import Rate, failure_of, main, run_step, step_function
from support.factories import step_spec
from support.waiting import wait_until


@pytest.fixture
def step(tmp_path):
    run = RunFolder(tmp_path / "run")
    write_record(run.recipe, load_recipe("digits"))
    write_record(run.site, load_site("laptop"))
    folder = StepFolder(tmp_path / "steps" / "000001")
    spec = step_spec(run, "pack")
    write_record(folder.spec, spec)
    return folder


@pytest.fixture
def run_as(monkeypatch):
    """Have the registry give this function for every kind."""

    def install(function):
        monkeypatch.setattr("headrace.steps.run.step_function", lambda kind: function)

    return install


def test_a_step_takes_what_it_took_when_the_clock_is_set_back_meanwhile(step, run_as, monkeypatch):
    def work(_context):
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        return {}

    run_as(work)
    result = run_step(step)
    assert 0 <= result.finished_at - result.started_at < 600


def test_success_writes_result_status_and_events(step, run_as):
    """Also figures that are not finite."""

    def work(context):
        context.progress(2, 3, "things")  # a step that succeeds is all done
        context.report(loss=0.5, gain=math.inf, gap=math.nan)
        return {"answer": 42}

    run_as(work)
    assert run_step(step).outputs == {"answer": 42}
    status = read_record(step.status, StepStatus)
    assert (status.state, status.progress.done) == (StepState.SUCCEEDED, 3)
    assert math.isnan(status.metrics.pop("gap"))
    assert status.metrics == {"loss": 0.5, "gain": math.inf}
    events = [json.loads(line)["event"] for line in step.events.read_text().splitlines()]
    assert events == ["started", "finished"]


def test_a_step_with_a_result_is_not_run_again(step, run_as):
    done = StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2)
    write_record(step.result, done)
    run_as(lambda context: pytest.fail("ran again"))
    assert run_step(step) == done


def test_cancel_file_stops_the_step(step, run_as):
    begun = threading.Event()

    def work(context):
        begun.set()
        while True:
            context.check()

    run_as(work)
    threading.Thread(target=lambda: begun.wait() and write_text(step.cancel, "asked")).start()
    result = run_step(step)
    assert result.state is StepState.CANCELLED
    assert "asked" in result.failure.message
    status = read_record(step.status, StepStatus)
    assert (status.state, status.progress.done) == (StepState.CANCELLED, 0)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (WorkerLostError("worker died"), StepState.CANCELLED),
        (ZeroDivisionError("division by zero"), StepState.CANCELLED),
        (DataError("bad sample"), StepState.FAILED),
    ],
)
def test_faults_of_a_machine_that_is_taken_away_from_a_cancelled_step(step, run_as, error, state):
    """A lease that closes cancels its steps first, and then ends the workers below them."""

    def work(context):
        write_text(step.cancel, "asked")
        raise error

    run_as(work)
    assert run_step(step).state is state


def test_a_clock_that_is_set_ends_no_step(step, run_as, monkeypatch):
    spec = read_record(step.spec, StepSpec)
    write_record(step.spec, spec.model_copy(update={"timeout_s": 600}))
    lease = LeaseFolder(step.path.parent.parent)
    write_record(lease.host, HostRecord(process=ProcessIdentity.of(), ends_at=time.time() + 600))

    def work(context):
        context.check()
        set_to = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: set_to)
        context.check()
        return {}

    run_as(work)
    assert run_step(step).state is StepState.SUCCEEDED
    status = read_record(step.status, StepStatus)
    assert status.elapsed_s < 600


@pytest.mark.parametrize(
    ("lease_s", "timeout_s", "words"),
    [(2, None, "was not done when the time of lease"), (600, 0.01, "ran past its limit")],
)
def test_a_step_ends_in_time_for_itself_and_its_lease(step, run_as, lease_s, timeout_s, words):
    lease = LeaseFolder(step.path.parent.parent)
    ends_at = time.time() + lease_s
    write_record(lease.host, HostRecord(process=ProcessIdentity.of(), ends_at=ends_at))
    spec = read_record(step.spec, StepSpec)
    write_record(step.spec, spec.model_copy(update={"timeout_s": timeout_s}))

    def work(context):
        while True:
            context.progress(0, None, "")

    run_as(work)
    result = run_step(step)
    assert result.state is StepState.TIMED_OUT
    assert words in result.failure.message


def test_a_status_that_cannot_be_written_for_a_while_costs_nothing(step, run_as, caplog):
    caplog.set_level(logging.INFO)

    def work(context):
        step.status.unlink()
        (step.status / "in-the-way").mkdir(parents=True)
        wait_until(
            lambda: "the work continues: status: " in caplog.text, 90, "the reporter to meet it"
        )
        (step.status / "in-the-way").rmdir()
        step.status.rmdir()
        wait_until(step.status.is_file, 90, "the status to be written again")
        step.status.unlink()
        (step.status / "in-the-way").mkdir(parents=True)
        return {"answer": 42}

    run_as(work)
    assert run_step(step).outputs == {"answer": 42}
    assert read_record(step.result, StepResult) is not None


@pytest.mark.parametrize(
    ("error", "failure_class", "traced"),
    [
        (DataError("bad sample"), FailureClass.DATA_ERROR, False),
        (StepCancelledError("asked"), FailureClass.CANCELLED, False),
        (WorkerLostError("worker died"), FailureClass.INFRASTRUCTURE, False),
        (UserCodeError("model raised", trace="Traceback …"), FailureClass.USER_ERROR, True),
        (MemoryError(), FailureClass.OUT_OF_MEMORY, True),
        (ZeroDivisionError("division by zero"), FailureClass.INFRASTRUCTURE, True),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/tmp/x"), FailureClass.CAPACITY, False),
        (OSError(errno.EROFS, "Read-only", "/tmp/x"), FailureClass.INFRASTRUCTURE, False),
        (ConnectionResetError(errno.ECONNRESET, "reset"), FailureClass.INFRASTRUCTURE, True),
    ],
)
def test_failure_classes(error, failure_class, traced):
    failure = failure_of(error)
    assert failure.failure_class is failure_class
    assert bool(failure.trace) is traced
    assert failure.message


def test_a_full_disk_is_told_with_the_file_and_what_is_free(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "gone" / "file"))
    message = failure_of(error).message
    assert message.startswith(f"the disk or quota is full: {tmp_path}/gone/file (")
    assert re.search(r"\([\d,]+ bytes free on /\S*\)\n  Free some space there", message)


def test_folder_without_spec(tmp_path):
    with pytest.raises(StepError, match=r"holds no spec\.json"):
        run_step(StepFolder(tmp_path))


@pytest.mark.parametrize("content", [b'{"key": ', b'{"kind": 3}', b"\xff"])
def test_a_damaged_spec_ends_the_step_with_what_is_wrong(step, content, monkeypatch):
    step.spec.write_bytes(content)
    monkeypatch.setattr("headrace.steps.run.begin_child", lambda: None)
    assert main([str(step.path)]) == 0
    result = read_record(step.result, StepResult)
    assert result.state is StepState.FAILED
    assert str(step.spec) in result.failure.message


def test_unknown_kind_lists_the_valid_ones():
    with pytest.raises(Exception, match="Did you mean 'pack'"):
        step_function("pakc")


def test_rate_over_a_window():
    rate = Rate()
    assert rate.add(-20.0, 0, "samples") is None
    assert rate.add(0.0, 0, "samples") is None  # warming up does not count
    assert rate.add(10.0, 50, "samples") == 5.0
    assert rate.add(20.0, 150, "samples") == 7.5
    assert rate.add(60.0, 550, "samples") == 10.0  # only the last half minute counts
    assert rate.add(61.0, 1, "shards") is None  # another unit starts anew
