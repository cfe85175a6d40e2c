"""`headrace status` of runs that do not go on: why, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.clusters.lease_records import PoolJobView, PoolRecord
from headrace.execution.reap import end_run
from headrace.files.atomic import write_record
from headrace.processes.identity import ProcessIdentity
from headrace.states import StepState
from support.command_line import headrace
from support.runs import attempt_row_of, ended_owner, lease_on_disk, make_run

pytestmark = pytest.mark.usefixtures("headrace_home")


def shown(*arguments: str) -> str:
    done = headrace(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_whose_process_was_killed_is_not_shown_as_running() -> None:
    """pains 22: before anybody has reaped it."""
    owner = ended_owner()
    run = make_run(owner=owner)
    pid = owner.split(":")[-2]
    told = shown("status", run.run_id)
    assert f"process {pid} on " in told
    assert "has ended. Resume it: headrace resume " + run.run_id in told
    assert "running" not in told
    assert f"headrace resume {run.run_id}" in shown("runs")
    view = json.loads(shown("status", "--json"))
    assert (view["is_orphan"], view["state"]) == (True, "running")
    assert shown("logs", run.run_id, "--follow") == ""  # does not wait for what never comes


def test_a_run_that_goes_on_and_one_that_has_ended_are_not_to_be_resumed() -> None:
    run = make_run()
    ended = make_run(owner=ended_owner())
    end_run(ended, StepState.FAILED, "a test")
    for each in (run, ended):
        assert "resume" not in shown("status", each.run_id)
        assert not json.loads(shown("status", each.run_id, "--json"))["is_orphan"]


def test_a_run_that_has_succeeded_is_left_as_it_is_by_resume() -> None:
    run = make_run(owner=ended_owner())
    end_run(run, StepState.SUCCEEDED, "a test")
    before = json.loads(shown("status", run.run_id, "--json"))
    assert "has succeeded; there is nothing to continue" in shown("resume", run.run_id)
    assert json.loads(shown("status", run.run_id, "--json")) == before


def test_a_run_that_waits_for_room_says_who_has_it(headrace_home: Path) -> None:
    run = make_run()
    assert "Waits for a lease" not in shown("status", run.run_id)
    others = [make_run() for _ in range(run.site.limits.max_leases)]
    held = [lease_on_disk(other, host=ProcessIdentity.of()) for other in others]
    told = shown("status", run.run_id)
    assert "Waits for a lease: Site 'laptop' has 2 leases open and allows 2" in told
    assert all(lease_id in told for lease_id in held)
    assert "Waits" not in shown("status", others[0].run_id)  # it has its lease


def test_a_pool_that_waits_for_nodes_says_why_and_until_when() -> None:
    """pains 22: it has its lease; what is missing are nodes."""
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    attempt_row_of(run, "pack", lease_id, state=StepState.RUNNING)
    why = "2 of 4 nodes; 2 pending: Resources, expected 14:05"
    here = PoolJobView(node="node-0", job_id="5", stage="busy", why="Slurm job 5 is running")
    write_record(run.lease_folder(lease_id).pool, PoolRecord(jobs=(here,), waits_for=why))
    told = shown("status", run.run_id)
    assert f"Waits for nodes: {why}" in told
    assert "Waits for a lease" not in told
    assert json.loads(shown("status", run.run_id, "--json"))["has_lease"]


def test_a_step_that_is_tried_again_waits_too() -> None:
    run = make_run()
    lease_id = lease_on_disk(run, host=ProcessIdentity.of())
    attempt_row_of(run, "pack", lease_id, state=StepState.SUCCEEDED)
    others = [make_run() for _ in range(run.site.limits.max_leases)]
    for other in others:
        lease_on_disk(other, "gpu", host=ProcessIdentity.of())
    assert "Waits for a lease" in shown("status", run.run_id)  # stage needs another role
