"""Leases of a run, and the nodes that they do without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest

from headrace.cli.view import remarks
from headrace.clusters import lease_client
from headrace.clusters.lease_files import NEVER_STARTED
from headrace.clusters.lease_records import BadNodes, PoolRecord
from headrace.clusters.preflight import Check, NodeReport, report_file
from headrace.errors import CapacityError, OwnLeasesError
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.files.layout import StepFolder
from headrace.leases import run_leases
from headrace.leases.run_leases import RELEASED, release
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from headrace.states import EndedJob, LeaseState, StepState
from headrace.status.lease import bad_nodes, not_the_nodes, why_no_room
from headrace.status.run_details import run_details
from headrace.steps import mailbox
from headrace.steps.mailbox import DriverExit, StepResult
from support.access import write_site
from support.factories import step_spec
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.small_disk import read_only
from support.waiting import wait_until

_HOST = """
import pathlib, sys, time
lease = pathlib.Path(sys.argv[1])
while not (lease / "close").exists():
    time.sleep(0.01)
(lease / "closed").write_text('{"state": "closed", "reason": "asked"}')
"""


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def lease_id(run: Run) -> Iterator[str]:
    """A lease whose host ends when it is asked to."""
    folder = run.lease_folder(f"{run.run_id}-cpu-1")
    host = subprocess.Popen([sys.executable, "-c", _HOST, str(folder.path)])
    yield lease_on_disk(run, host=ProcessIdentity.of(host.pid))
    host.kill()
    host.wait()


def submitted(run: Run, lease_id: str, step: str) -> StepFolder:
    spec = step_spec(run.folder, step)
    attempt_row_of(run, step, lease_id)
    return mailbox.submit(run.lease_folder(lease_id), spec)


def test_a_step_that_runs_when_its_lease_is_released_counts_as_cancelled(run, lease_id):
    """Not as lost, which would be tried again: its task was ended by a user before."""
    running, done = submitted(run, lease_id, "train"), submitted(run, lease_id, "stage")
    write_record(done.result, StepResult(state=StepState.SUCCEEDED, started_at=1, finished_at=2))
    release(run, "cpu", "released by task release_gang")
    write_record(running.exit, DriverExit(code=-15, at=3.0))  # as the host ends drivers
    result = mailbox.outcome(running)
    assert result.state is StepState.CANCELLED
    assert result.failure.message == f"{RELEASED}: released by task release_gang"
    assert not done.cancel.exists()
    (row,) = open_ledger().leases(run_id=run.run_id)
    assert (row.state, row.why_ended) == (LeaseState.CLOSED, "asked")


@pytest.mark.parametrize(
    ("role", "kind", "script", "is_warm"),
    [
        ("gpu", "train", None, True),
        ("cpu", "train", None, False),
        ("gpu", "pack", None, False),
        ("gpu", "train", "train.py", False),
    ],
)
def test_nodes_import_what_ranks_need_where_ranks_will_be_forked(role, kind, script, is_warm):
    run = make_run(kind=kind)
    train = run.recipe.train.model_copy(update={"script": script})
    changes = {"train": train, "model": None if script else run.recipe.model}
    run = replace(run, recipe=run.recipe.model_copy(update=changes))
    spec = run_leases._spec(run, role, f"{run.run_id}-{role}-1", None)
    assert spec.preload == (run_leases.PRELOAD if is_warm else ())


def test_a_later_lease_opens_with_the_first_where_there_is_room(run, monkeypatch):
    """When that one has its place. One is left for others; what fails, the step asks for again."""
    started = []

    def start(run: Run, role: str, lease_id: str) -> None:
        taken = [each.lease_id for each in open_ledger().active_leases(run.site.name)]
        started.append((role, f"{run.run_id}-cpu-1" in taken))
        if role == "gpu":
            raise CapacityError("others were quicker")

    monkeypatch.setattr(run_leases, "_start", start)
    assert run_leases.acquire(run, "cpu", ["gpu"]) == f"{run.run_id}-cpu-1"
    assert started == [("gpu", True), ("cpu", True)]
    slurm = run.site.roles["gpu"].model_copy(update={"backend": "slurm"})
    site = run.site.model_copy(update={"roles": {**run.site.roles, "gpu": slurm}})
    run_leases.acquire(replace(run, site=site), "cpu", ["gpu"])  # its job may wait, or cost
    for _ in range(run.site.limits.max_leases // 2):
        lease_on_disk(make_run())
    run_leases.acquire(run, "cpu", ["gpu"])
    assert started[2:] == [("cpu", True)] * 2


def test_a_user_has_so_many_leases_at_once_as_the_site_says_now(headrace_home, monkeypatch):
    """One more waits, and is told for which; a lease ahead of its step does not wait."""
    monkeypatch.setattr(run_leases, "_start", lambda *_: None)
    write_site(headrace_home, None, limits={"leases_user": 1})
    first, second = (make_run(site="club", user="ann") for _ in range(2))
    mine = run_leases.acquire(first, "cpu", ["gpu"])
    with pytest.raises(OwnLeasesError, match=r"User ann .*\(limits.leases_user\)") as caught:
        run_leases.acquire(second, "cpu")
    assert mine in caught.value.what
    ask = partial(open_ledger().num_before, run_leases.lease_key(second, "cpu"))
    assert (ask(2), ask(2, 1)) == (0, None)
    assert why_no_room(second) == caught.value.what
    assert "has 1 lease open" in caught.value.what
    assert not why_no_room(first)  # what it has itself goes when its next step begins
    assert run_leases.acquire(make_run(site="club", user="bob"), "cpu")
    write_site(headrace_home, None, limits={"leases_user": 2})
    assert run_leases.acquire(second, "cpu")


def test_a_lease_ahead_of_its_step_keeps_no_turn(headrace_home, monkeypatch):
    monkeypatch.setattr(run_leases, "_start", lambda *_: None)
    write_site(headrace_home, None, limits={"leases_user": 1, "max_leases": 4})
    run_leases.acquire(make_run(site="club", user="ann"), "cpu", ["gpu"])
    for _ in range(3):  # where ann's lease waited for a place, the last one would be hers
        write_site(headrace_home, None, limits={"max_leases": 4})
        assert run_leases.acquire(make_run(site="club", user="bob"), "cpu")


def test_the_end_of_a_lease_that_nobody_waits_for_is_recorded_when_its_host_has_told(run, lease_id):
    folder = run.lease_folder(lease_id)
    assert run_leases.release(run, "cpu", "not needed any more", wait=False) is False
    assert folder.close.read_text() == "not needed any more"
    assert open_ledger().lease(lease_id).state.is_active
    wait_until(folder.closed.exists, 60, "the host to tell")
    assert run_leases.release(run, "cpu", "not needed any more", wait=False) is True
    ended = open_ledger().lease(lease_id)
    assert (ended.state, ended.why_ended) == (LeaseState.CLOSED, "asked")
    assert run_leases.release(run, "cpu", "again", wait=False) is True


def test_nodes_that_a_pool_lost_and_why_stay_in_the_ledger(run, lease_id):
    """pains 31: also when the folder of the lease has gone."""
    folder = run.lease_folder(lease_id)
    ended = EndedJob(
        node="node-1", job_id="12", host="n3", why="Slurm job 12 ended: preempted", at=5.0
    )
    write_record(folder.pool, PoolRecord(ended=(ended,)))
    assert [each.why for each in run_details(run.run_id).lost_nodes] == [
        ended.why
    ]  # it still lives
    release(run, "cpu", "the test is over")
    folder.pool.unlink()
    (row,) = open_ledger().leases(run_id=run.run_id)
    assert [each.model_dump() for each in row.lost_nodes] == [ended.model_dump()]
    seen = run_details(run.run_id)
    assert [each.why for each in seen.lost_nodes] == [ended.why]
    last = "1 node of its pools ended early, the last: Slurm job 12 ended: preempted"
    assert f"{last} (on n3)" in list(remarks(seen))


def test_a_step_of_a_lease_that_was_lost_stays_lost(run):
    """Its host was killed: another attempt is due."""
    lease_id = lease_on_disk(run)
    folder = submitted(run, lease_id, "train")
    release(run, "cpu", "released by task release_gang")
    assert not folder.cancel.exists()
    assert mailbox.lost(folder, "gone").state is StepState.LOST


@pytest.mark.parametrize(
    ("problems", "is_blamed"),
    [
        (("no image", None), True),  # it may have been that node
        (("no image", "not mounted"), True),
        (("no image", "no image"), False),
        (("no image", None, "no image"), False),
    ],
)
def test_what_fails_in_the_same_way_again_blames_no_node(
    problems: tuple[str | None, ...], is_blamed: bool
) -> None:
    run = make_run()
    lease_on_disk(run, "gpu")
    (row,) = open_ledger().leases(run_id=run.run_id)
    rows = [replace(row, lease_id=f"l{number}") for number in range(len(problems))]
    for each, problem in zip(rows, problems, strict=True):
        folder = run.lease_folder(each.lease_id)
        check = Check(name="container", problem=problem or "", seconds=0.1)
        write_record(report_file(folder, 0), NodeReport(node="n1", index=0, checks=(check,)))
    write_record(run.lease_folder("l0").bad_nodes, BadNodes(nodes=("n1",), why="x"))
    why = not_the_nodes(run, rows[0], rows)
    assert (why == "") == is_blamed
    assert is_blamed or "container: no image\n  It was the same 2 times" in why
    assert bad_nodes(run, rows) == (("n1",) if is_blamed else ())


def test_a_lease_that_another_caller_starts_just_now_is_not_given_up(run, lease_id, monkeypatch):
    """Its files are looked for, are made, and the first attempt is entered: in this order."""
    attempt_row_of(run, "pack", lease_id)
    there = [False]  # the first look comes before the files

    def looked_for(file):
        return there.pop() if file.name == "spec.json" and there else file.exists()

    monkeypatch.setattr(run_leases, "is_there", looked_for)
    assert run_leases.current(run, "cpu") == lease_id
    assert not there


def test_a_lease_whose_folder_is_removed_is_lost_and_another_is_opened(run, monkeypatch):
    monkeypatch.setattr(run_leases, "_start", lambda *_: None)
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    assert run_leases.acquire(run, "cpu") == lease_id
    attempt_row_of(run, "pack", lease_id)
    shutil.rmtree(run.lease_folder(lease_id).path)
    assert run_leases.acquire(run, "cpu") == f"{run.run_id}-cpu-2"
    first = open_ledger().lease(lease_id)
    assert (first.state, first.why_ended) == (LeaseState.LOST, NEVER_STARTED)


def test_a_lease_that_was_entered_and_never_started_is_started(run, monkeypatch):
    started = []
    monkeypatch.setattr(
        run_leases, "_start", lambda _run, _role, lease_id: started.append(lease_id)
    )
    first = run_leases.acquire(run, "cpu")
    assert run_leases.acquire(run, "cpu") == first
    assert started == [first] * 2


@pytest.mark.parametrize("is_over", [True, False])
def test_a_lease_in_a_read_only_folder_ends_all_the_same(run, is_over: bool):
    host = subprocess.Popen(["sleep", "600"])
    lease_id = lease_on_disk(run, host=ProcessIdentity.of(host.pid))
    step = submitted(run, lease_id, "train")
    attempt_row_of(run, "train", lease_id, number=1)
    if is_over:
        host.kill()
        host.wait()
    with read_only(run.lease_folder(lease_id).path), mock.patch.object(lease_client, "wait_until"):
        end_run(run, StepState.FAILED)
    host.kill()
    host.wait()
    assert not step.cancel.exists()
    assert open_ledger().run(run.run_id).state is StepState.FAILED
    (row,) = open_ledger().leases(run_id=run.run_id)
    assert not row.state.is_active
