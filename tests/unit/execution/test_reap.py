"""The reaper: what nobody answers for is ended and written down; the rest is left alone."""

from __future__ import annotations

import errno
import shutil
import time

import pytest

from headrace.clusters import lease_files
from headrace.clusters.lease_files import LeaseFiles, write_heartbeat
from headrace.clusters.lease_records import Ending
from headrace.clusters.node_marks import NodeLine
from headrace.execution.reap import end_run, reap
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import StepFolder
from headrace.files.lines import append_line
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.refresh_usage import refresh_usage
from headrace.states import FailureClass, LeaseState, StepState
from headrace.status.cost import cost_page
from headrace.steps import mailbox
from support.factories import step_spec
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run

_BEGAN = NodeLine.model_validate({"event": "began", "name": "node-1"}).model_dump_json()


def nobody(*_: object) -> None:
    return None


def submitted(run, lease_id, step="pack", *, has_number=True) -> StepFolder:
    record = attempt_row_of(run, step, lease_id)
    spec = step_spec(run.folder, step, key=record.key)
    folder = mailbox.submit(run.lease_folder(lease_id), spec)
    if has_number:
        number = {"number": folder.number}
        open_ledger().set_attempt(run.run_id, step, 1, state=StepState.RUNNING, **number)
    return folder


def state_of(run) -> tuple[StepState, list[StepState], list[LeaseState]]:
    return (
        open_ledger().run(run.run_id).state,
        [row.state for row in open_ledger().attempts(run.run_id)],
        [row.state for row in open_ledger().leases(run_id=run.run_id)],
    )


def test_a_run_whose_owner_has_ended_is_ended_with_all_it_has():
    """Pains 9."""
    run = make_run(owner=ended_owner())
    lease_id = lease_on_disk(run)
    folder = submitted(run, lease_id)
    (line,) = reap(nobody, nobody)
    assert line == f"run {run.run_id}: its owner {run.request.owner} has ended; leases closed"
    assert folder.cancel.exists()
    assert run.lease_folder(lease_id).closed.exists()
    assert state_of(run) == (StepState.LOST, [StepState.CANCELLED], [LeaseState.LOST])
    assert reap(nobody, nobody) == ()


def test_a_healthy_run_is_left_alone():
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    folder = submitted(run, lease_id)
    assert reap(nobody, nobody) == ()
    assert not folder.cancel.exists()
    assert state_of(run) == (StepState.RUNNING, [StepState.RUNNING], [LeaseState.STARTING])


def test_the_caller_says_what_has_become_of_other_owners():
    run = make_run(owner="airflow:headrace_train:manual")
    lease_on_disk(run, host=ProcessIdentity.of())
    asked = []

    def asks(record) -> None:
        asked.append(record.owner)

    assert reap(asks, nobody) == ()
    assert asked == ["airflow:headrace_train:manual"]


def test_a_step_that_nobody_waits_for_is_cancelled_and_no_other():
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    pack = submitted(run, lease_id, "pack")
    train = submitted(run, lease_id, "train", has_number=False)  # its writer was killed before
    attempt_row_of(run, "stage", lease_id, state=StepState.SUCCEEDED)
    asked = []

    def is_left(_record, step: str) -> bool:
        asked.append(step)
        return step == "train"

    done = reap(nobody, is_left)
    assert sorted(asked) == ["pack", "train"]  # Airflow is asked about each that runs, no other
    assert done == (f"step {run.run_id}/train/1: cancelled, its task or owner has ended",)
    assert train.cancel.read_text() == "its task or owner has ended"
    assert not pack.cancel.exists()
    assert reap(nobody, nobody) == ()


def test_a_step_on_a_full_disk_keeps_no_other_from_being_cancelled(monkeypatch):
    run, asked, request = make_run(), [], mailbox.request_cancel
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    for step in ("pack", "train"):
        submitted(run, lease_id, step)

    def full_at_first(folder: StepFolder, reason: str) -> None:
        asked.append(folder)
        if len(asked) == 1:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder.path))
        request(folder, reason)

    monkeypatch.setattr(mailbox, "request_cancel", full_at_first)
    assert len(reap(nobody, lambda _record, _step: True)) == 1
    assert len(asked) == 2
    assert asked[1].cancel.exists()


def test_a_run_whose_folder_has_gone_is_recorded_as_lost():
    run = make_run()
    lease_id = lease_on_disk(run)
    attempt_row_of(run, "pack", lease_id)
    shutil.rmtree(run.folder.path)
    first, second = reap(nobody, nobody)
    assert first.startswith(f"run {run.run_id}: recorded as lost: ")
    assert second.startswith(f"lease {lease_id}: closed: ")
    assert state_of(run) == (StepState.LOST, [StepState.LOST], [LeaseState.LOST])


def test_a_lost_lease_of_a_run_that_goes_on_is_settled():
    run = make_run()
    lease_id = lease_on_disk(run)
    (line,) = reap(nobody, nobody)
    assert line.startswith(f"lease {lease_id}: closed (The lease's host (process ")
    assert LeaseFiles.read(run.lease_folder(lease_id)).why_ended in line
    assert state_of(run) == (StepState.RUNNING, [], [LeaseState.LOST])


def test_what_goes_on_is_counted_by_the_reaper_and_pages_only_read():
    run = make_run(owner="airflow:headrace_train:manual")
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    submitted(run, lease_id, "train")
    append_line(run.lease_folder(lease_id).nodes, _BEGAN)
    assert (cost_page().rows, cost_page().as_of) == ((), None)
    assert reap(nobody, nobody) == ()
    (month,) = cost_page().rows
    as_of = cost_page().as_of
    assert month.attempts == 1
    assert as_of is not None
    sums = open_ledger().usage_sums()
    assert reap(nobody, nobody) == ()
    refresh_usage()  # both leave alone what was counted just before
    assert (open_ledger().usage_sums(), cost_page().as_of) == (sums, as_of)
    refresh_usage(run.run_id)
    assert cost_page().as_of > as_of


def test_ending_a_run_leaves_no_open_attempt_not_even_one_that_was_never_submitted():
    run = make_run()
    lease_id = lease_on_disk(run)
    submitted(run, lease_id, "pack")
    attempt_row_of(run, "train", lease_id)
    end_run(run, StepState.CANCELLED, "interrupted")
    assert state_of(run) == (
        StepState.CANCELLED,
        [StepState.CANCELLED, StepState.LOST],
        [LeaseState.LOST],
    )
    pack, train = open_ledger().attempts(run.run_id)
    assert pack.message == "interrupted"
    assert train.failure_class is FailureClass.LOST
    assert "never submitted" in (train.message or "")


def test_a_lease_that_is_silent_at_one_look_only_is_left_alone(monkeypatch):
    """Its host was stopped for a moment, or a shared folder showed an old heartbeat."""
    run = make_run()
    lease = run.lease_folder(lease_on_disk(run, host=ProcessIdentity.of()))
    long_ago = run.site.limits.lost_after + 1
    write_text(lease.heartbeat, f"{time.time() - long_ago} {time.monotonic() - long_ago}\n")
    monkeypatch.setattr(lease_files, "_wait", lambda _seconds: write_heartbeat(lease))
    assert reap(nobody, nobody) == ()
    assert not lease.close.exists()
    assert state_of(run) == (StepState.RUNNING, [], [LeaseState.STARTING])


@pytest.mark.parametrize("damaged_file", ["host", "cause"])
def test_a_damaged_lease_keeps_no_other_from_being_settled(damaged_file: str):
    damaged, lost = make_run(), make_run()
    folder = damaged.lease_folder(lease_on_disk(damaged, host=ProcessIdentity.of()))
    if damaged_file == "cause":
        write_record(folder.closed, Ending(state=LeaseState.LOST, reason="its node was lost"))
    getattr(folder, damaged_file).write_text("[")
    lease_id = lease_on_disk(lost)
    (line,) = reap(nobody, nobody)
    assert line.startswith(f"lease {lease_id}: closed")
    assert damaged_file == "cause" or not folder.closed.exists()
