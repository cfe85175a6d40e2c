"""Starting, finding and collecting the steps of a run."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from headrace.clusters import lease_files
from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import HostRecord
from headrace.errors import CapacityError, EndedRunError, StepError, StepNotEndedError, UserError
from headrace.execution.decisions import RunningAttempt
from headrace.execution.reap import ask_to_stop, end_run
from headrace.execution.step_attempts import collect
from headrace.files.atomic import read_record, write_record, write_text
from headrace.files.layout import StepFolder, checkpoint_name
from headrace.files.lines import append_line
from headrace.leases.end_leases import cancel_steps
from headrace.leases.run_leases import acquire
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.home import home
from headrace.runs.audit import Actor
from headrace.runs.runs import Run
from headrace.states import FailureClass, LeaseState, StepState
from headrace.steps import mailbox
from headrace.steps.mailbox import Failure, Progress, StepResult, StepStatus
from headrace.steps.retry_policy import ERROR, PROGRESS, TOTAL
from headrace.suites.records import Control
from support.attempts import start_step
from support.bad_input import Place
from support.factories import step_spec
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.training import write_blobs


def at_once(count: int, function):
    """Results of `count` calls that start together."""
    barrier = threading.Barrier(count)

    def call(_: int):
        barrier.wait()
        return function()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))


def result(state: StepState, **changes) -> StepResult:
    return StepResult(**{"state": state, "started_at": 1.0, "finished_at": 3.0, **changes})


def test_a_succeeded_step_is_collected_without_a_lease():
    run = make_run()
    attempt_row_of(run, "stage", lease_on_disk(run))
    open_ledger().set_attempt(
        run.run_id, "stage", 1, state=StepState.SUCCEEDED, outputs={"nodes": "d"}
    )
    found = start_step(run, "stage")
    assert isinstance(found, StepResult)
    assert found.outputs == {"nodes": "d"}
    assert len(open_ledger().attempts(run.run_id)) == 1


def _packed(run: Run, dataset: Path) -> str:
    """Enter an attempt that packed a dataset, which lies there; its fingerprint."""
    manifest = write_blobs(dataset)
    attempt_row_of(run, "pack", lease_on_disk(run, host=ProcessIdentity.of()))
    outputs = {"dataset": str(dataset), "fingerprint": manifest.fingerprint}
    open_ledger().set_attempt(run.run_id, "pack", 1, state=StepState.SUCCEEDED, outputs=outputs)
    return manifest.fingerprint


@pytest.mark.parametrize(
    ("loses", "begins"),
    [
        (lambda dataset: None, False),
        (lambda dataset: shutil.rmtree(dataset), True),
        (lambda dataset: (dataset / "manifest.json").unlink(), True),
        (lambda dataset: (dataset / "manifest.json").write_text("{"), True),
        (lambda dataset: next(dataset.rglob("*.h5")).unlink(), True),
        (lambda dataset: os.truncate(next(dataset.rglob("*.h5")), 10), True),
    ],
    ids=["nothing", "folder", "manifest", "damaged manifest", "shard", "part of a shard"],
)
def test_a_dataset_that_is_gone_is_packed_again_while_a_step_needs_it(tmp_path, loses, begins):
    run = make_run()
    _packed(run, tmp_path / "data")
    loses(tmp_path / "data")
    assert isinstance(start_step(run, "pack"), RunningAttempt) is begins


def test_a_run_that_is_done_needs_no_dataset(tmp_path):
    run = make_run(kind="pack")
    _packed(run, tmp_path / "data")
    shutil.rmtree(tmp_path / "data")
    assert isinstance(start_step(run, "pack"), StepResult)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_dataset_that_is_packed_again_is_the_same_or_refused(tmp_path, is_same: bool):
    run = make_run(kind="suite", overrides=("suite.seeds=[1, 2]",))
    before = _packed(run, tmp_path / "data")
    (tmp_path / "data" / "manifest.json").unlink()
    ticket = start_step(run, "pack")
    outputs = {"dataset": "d", "fingerprint": before if is_same else "f" * 32}
    write_record(ticket.folder.result, result(StepState.SUCCEEDED, outputs=outputs))
    found = collect(run, ticket)
    if is_same:
        assert found.state is StepState.SUCCEEDED
        return
    assert found.failure.failure_class is FailureClass.DATA_ERROR
    assert (
        f"its fingerprint is {'f' * 32}, and the run began with {before}" in found.failure.message
    )
    assert "Bring its source back" in found.failure.message


def test_a_suite_step_that_has_succeeded_begins_again_when_more_trials_are_asked_for():
    run = make_run(kind="suite", overrides=("suite.seeds=[1, 2]",))
    attempt_row_of(run, "pack", lease_on_disk(run), outputs={"dataset": "d"})
    attempt_row_of(run, "suite", lease_on_disk(run, "gpu", host=ProcessIdentity.of()))
    for step in ("pack", "suite"):
        open_ledger().set_attempt(run.run_id, step, 1, state=StepState.SUCCEEDED)
    assert isinstance(start_step(run, "suite"), StepResult)
    for what, begins in (("pause", False), ("add", True)):
        append_line(run.folder.controls, Control(what=what, by="me").model_dump_json())
        assert isinstance(start_step(run, "pack"), StepResult)
        assert isinstance(start_step(run, "suite"), RunningAttempt) is begins
    assert [row.attempt for row in open_ledger().attempts(run.run_id, "suite")] == [1, 2]


def test_a_run_that_waits_for_a_lease_can_be_cancelled_and_then_gets_none():
    run = make_run()
    while len(open_ledger().active_leases(run.site.name)) < run.site.limits.max_leases:
        lease_on_disk(make_run(), host=ProcessIdentity.of())
    with pytest.raises(CapacityError):
        start_step(run, "pack")
    places = (f"{run.run_id}/cpu", run.site.limits.max_leases)
    assert open_ledger().num_before(*places) is None
    with pytest.raises(StepError, match="No step"):
        ask_to_stop(run, Actor.here(), "pack")
    assert ask_to_stop(run, Actor.here()) == ()
    assert open_ledger().run(run.run_id).state is StepState.CANCELLED
    assert open_ledger().num_before(*places) == 0  # whoever waits asks again, and is told
    with pytest.raises(EndedRunError, match="is cancelled: it gets no machines"):
        start_step(run, "pack")
    with pytest.raises(StepError, match="No step"):
        ask_to_stop(run, Actor.here())


def test_of_a_step_that_lacks_what_it_needs_no_attempt_is_entered():
    run = make_run()
    lease_on_disk(run, "gpu", host=ProcessIdentity.of())
    with pytest.raises(UserError, match="needs 'dataset' of 'pack'"):
        start_step(run, "evaluate")
    assert not open_ledger().attempts(run.run_id)


def test_a_result_that_nobody_wrote_down_is_collected():
    """Whoever waited for the step was killed between its end and the ledger."""
    run = make_run()
    lease_on_disk(run, host=ProcessIdentity.of())
    ticket = start_step(run, "pack")
    assert isinstance(ticket, RunningAttempt)
    done = result(StepState.SUCCEEDED, outputs={"dataset": "d"})
    write_record(StepFolder(run.lease_folder(ticket.lease.lease_id).step(1).path).result, done)
    assert start_step(run, "pack") == done
    (row,) = open_ledger().attempts(run.run_id)
    assert (row.state, row.outputs, row.finished_at) == (StepState.SUCCEEDED, {"dataset": "d"}, 3.0)


def test_many_that_start_a_step_at_once_get_one_attempt():
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    tickets = at_once(4, lambda: start_step(run, "pack"))
    assert len(set(tickets)) == 1
    (row,) = open_ledger().attempts(run.run_id)
    assert (row.attempt, row.state, row.number) == (1, StepState.RUNNING, 1)
    assert len(list(mailbox.submitted(run.lease_folder(lease_id)))) == 1


def test_an_attempt_whose_writer_ended_before_the_mailbox_is_submitted_as_it_is():
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    attempt_row_of(run, "pack", lease_id)
    ticket = start_step(run, "pack")
    assert isinstance(ticket, RunningAttempt)
    assert (ticket.attempt, ticket.lease.lease_id) == (1, lease_id)
    assert mailbox.find(run.lease_folder(lease_id), f"{run.run_id}/pack/1") is not None


def test_the_end_of_a_step_that_has_not_ended_cannot_be_collected():
    run = make_run()
    lease_on_disk(run, host=ProcessIdentity.of())
    ticket = start_step(run, "pack")
    assert isinstance(ticket, RunningAttempt)
    with pytest.raises(StepError, match=f"Step pack of run {run.run_id} has not ended yet"):
        collect(run, ticket)


def test_a_lease_that_is_silent_at_one_look_only_keeps_its_step(monkeypatch):
    run = make_run()
    lease = run.lease_folder(lease_on_disk(run, host=ProcessIdentity.of()))
    ticket = start_step(run, "pack")
    assert isinstance(ticket, RunningAttempt)
    long_ago = run.site.limits.lost_after + 1
    write_text(lease.heartbeat, f"{time.time() - long_ago} {time.monotonic() - long_ago}\n")
    monkeypatch.setattr(lease_files, "_wait", lambda _seconds: write_heartbeat(lease))
    with pytest.raises(StepNotEndedError):
        collect(run, ticket)
    assert acquire(run, "cpu") == ticket.lease.lease_id
    assert not lease.close.exists()


def test_only_a_running_step_is_asked_to_stop():
    """Not one that has ended, or that never was in a mailbox, whatever the ledger knows."""
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    folder = run.lease_folder(lease_id).step(1)

    def asked() -> list[str]:
        rows = open_ledger().attempts(run.run_id)
        return [row.key for row in cancel_steps(run, rows, "why")]

    attempt_row_of(run, "train", lease_id)
    assert asked() == []
    start_step(run, "pack")
    assert asked() == [f"{run.run_id}/pack/1"]
    assert folder.cancel.read_text() == "why"
    folder.cancel.unlink()
    write_record(folder.result, result(StepState.SUCCEEDED))
    assert asked() == []
    with pytest.raises(StepError, match="No step"):
        ask_to_stop(run, Actor.here(), "pack")
    assert not folder.cancel.exists()


def test_a_site_without_room_says_who_holds_its_leases():
    """Pains 2: what cannot start now waits and is told why; nothing is left of the request."""
    run = make_run()
    holders = [make_run() for _ in range(run.site.limits.max_leases)]
    held = [lease_on_disk(other, host=ProcessIdentity.of()) for other in holders]
    with pytest.raises(CapacityError) as caught:
        start_step(run, "pack")
    assert "laptop" in caught.value.what
    assert all(lease_id in str(caught.value) for lease_id in held)
    assert caught.value.failure_class.is_retried
    assert open_ledger().attempts(run.run_id) == ()
    assert len(list(run.site_folder.leases.iterdir())) == len(held)


def _endless_run() -> Run:
    """A run whose packing does not end by itself."""
    place = Place(home())
    place.write_site()
    source = place.home / "raw"
    source.mkdir()
    (source / "0.dat").write_text("endless")
    dataset = {"source": str(source), "include": ["*.dat"]}
    dataset["reader"] = {"_target_": "frail_reader.read"}
    place.write_recipe("endless", pack_role="cpu", dataset={"name": "endless", **dataset})
    return make_run(recipe="endless", site="here")


def test_a_lease_that_died_is_replaced_and_the_step_tried_again(no_leftover_processes):
    """Four ask at once for a lease, its host is killed, four ask again: one new attempt."""
    run = _endless_run()
    (first,) = set(at_once(4, lambda: start_step(run, "pack")))
    host = read_record(run.lease_folder(first.lease.lease_id).host, HostRecord)
    process = psutil.Process(host.process.pid)
    process.kill()
    process.wait(90)
    (second,) = set(at_once(4, lambda: start_step(run, "pack")))
    assert (second.attempt, second.lease.lease_id) == (2, f"{run.run_id}-cpu-2")
    lost, running = open_ledger().attempts(run.run_id)
    assert (lost.state, lost.failure_class) == (StepState.LOST, FailureClass.LOST)
    assert f"process {process.pid} " in (lost.message or "")
    assert running.state is StepState.RUNNING
    assert acquire(run, "cpu") == second.lease.lease_id

    end_run(run, StepState.CANCELLED, "the test is over")
    states = {row.lease_id: row.state for row in open_ledger().leases(run_id=run.run_id)}
    assert (states[second.lease.lease_id], states[first.lease.lease_id]) == (
        LeaseState.CLOSED,
        LeaseState.LOST,
    )
    assert all(row.state.is_final for row in open_ledger().attempts(run.run_id))


ENDS = [
    (StepState.TIMED_OUT, FailureClass.TIMED_OUT),
    (StepState.PREEMPTED, FailureClass.PREEMPTED),
    (StepState.FAILED, FailureClass.OUT_OF_MEMORY),
]


@pytest.mark.parametrize(("state", "failure_class"), ENDS)
def test_the_step_of_the_newest_checkpoint_is_kept(
    state: StepState, failure_class: FailureClass
) -> None:
    run = make_run()
    lease_id = lease_on_disk(run, "gpu", host=ProcessIdentity.of())
    attempt_row_of(run, "train", lease_id)
    (row,) = open_ledger().attempts(run.run_id)
    lease = run.lease_folder(lease_id)
    spec = step_spec(run.folder, "train", key=row.key)
    folder = mailbox.submit(lease, spec)
    run.folder.checkpoints.mkdir(parents=True)
    for step in (20, 24):
        (run.folder.checkpoints / checkpoint_name(step)).write_bytes(b"x")
    progress = Progress(done=26, total=60, unit="steps", phase="epoch 2/3")
    write_record(folder.status, StepStatus(state=StepState.RUNNING, progress=progress))
    failure = Failure(failure_class=failure_class, error="", message="its time is over")
    write_record(
        folder.result, StepResult(state=state, failure=failure, started_at=1, finished_at=2)
    )
    collect(run, RunningAttempt(step="train", attempt=1, folder=folder))
    (row,) = open_ledger().attempts(run.run_id)
    assert row.outputs == {ERROR: "", PROGRESS: 24.0, TOTAL: 60.0}
