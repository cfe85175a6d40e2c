"""What a user clicks on a run at work: mark failed, clear, fail the run, with and without
a triggerer alive (pains 9). The work must stop within a minute, and go on when it is asked to.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.files.layout import LeaseFolder
from headrace.states import StepState
from headrace.steps import mailbox
from headrace_airflow.airflow_api import STOPPED
from support import job_processes
from support.airflow_service import DAG_ID, OWN_DATA, AirflowService
from support.command_line import headrace
from support.held_training import HOLD_AT, STOPPED_WITHIN_S, HeldTraining, standing_still
from support.secret_sweep import check_only_in, digest_of, files_with
from support.training import weights_here
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

Start = Callable[[], HeldTraining]

_START_STEP = """
import sys
from headrace.execution.decisions import Memory, decide
from headrace.execution.step_attempts import act, observe
from headrace.runs.planned_steps import step_of
from headrace.runs.runs import open_run
run, memory = open_run(sys.argv[1]), Memory()
step = step_of(run.recipe, run.request.kind, "train")
while memory.ticket is None:
    memory = act(run, step, decide(observe(run, step, memory), memory), memory)
print(memory.ticket.attempt)
"""


@pytest.fixture
def start(airflow_service: AirflowService, tmp_path: Path) -> Start:
    """Starts a run whose training waits."""
    return lambda: HeldTraining(airflow_service, tmp_path / f"run-{len(list(tmp_path.iterdir()))}")


def test_a_task_is_cleared_while_it_runs_then_its_run_is_marked_failed_and_cleared(
    airflow_service: AirflowService, start: Start, tmp_path: Path
):
    """The model takes a lock that the kernel frees when its process has ended: two attempts at
    once would fail the run. A second start of a step that is at work attaches to it.

    A secret of who triggered it is in one file of its lease as long as that lives, and nowhere
    else: not in Airflow's logs, its database, or anything of headrace.
    """
    home, secret = airflow_service.home, f"secret-{uuid.uuid4().hex}"
    user = airflow_service.login.user
    airflow_service.api.connect(f"tracker-{user}", secret)
    with airflow_service.site_with(secrets={"TRACKER_KEY": "airflow:tracker-{user}.password"}):
        training = start()
    training.wait_held()
    assert training.tracker() == digest_of(secret)
    check_only_in(secret, LeaseFolder(training.step().path.parents[1]), home)
    first_ranks = job_processes.ranks(airflow_service, training.run_id)
    assert _start_step_in_processes(airflow_service, training.run_id, 3) == [1, 1, 1]
    assert training.states() == [StepState.RUNNING]
    assert len(list(training.step().path.parent.glob("[0-9]*"))) == 3  # pack, stage and train
    assert job_processes.ranks(airflow_service, training.run_id) == first_ranks

    airflow_service.api.clear(DAG_ID, training.dag_run, ["train"], downstream=True)
    wait_until(
        lambda: not any(rank.is_running() for rank in first_ranks),
        STOPPED_WITHIN_S,
        "the first attempt to end",
    )
    training.wait_held(2)
    step = training.step()

    airflow_service.api.mark_run(DAG_ID, training.dag_run, "failed")
    training.wait_no_ranks()
    training.wait_run(StepState.CANCELLED)
    training.wait_nothing_left()
    result = mailbox.outcome(step)
    assert result.state is StepState.CANCELLED
    assert result.failure.message.startswith(f"Cancelled: by {user} {STOPPED} task train")
    assert training.states() == [StepState.CANCELLED] * 2
    assert airflow_service.wait_end(training.dag_run) == "failed"
    assert airflow_service.task_states(training.dag_run)["train"] == "failed"
    log = airflow_service.task_log(DAG_ID, training.dag_run, "finish")
    assert f"train is failed (Cancelled: by {user} {STOPPED}" in log
    assert files_with(secret, home) == []

    training.release()
    airflow_service.api.clear(DAG_ID, training.dag_run, ["train"], downstream=False)
    wait_until(lambda: len(training.attempts()) == 3, STOPPED_WITHIN_S * 2, "training to go on")
    assert airflow_service.wait_end(training.dag_run) == "success"
    assert training.states() == [StepState.CANCELLED, StepState.CANCELLED, StepState.SUCCEEDED]
    assert training.states("stage") == [StepState.SUCCEEDED]
    checkpoint = HOLD_AT - HOLD_AT % 5
    assert [begun for _pid, begun in training.attempts()] == [0, checkpoint, checkpoint]
    assert _overlaps(airflow_service, training) == []
    training.wait_run(StepState.SUCCEEDED)
    training.wait_nothing_left()
    run = airflow_service.run(training.run_id)
    dataset = airflow_service.ledger.run(training.run_id).outputs["pack"]["dataset"]
    assert training.weights() == weights_here(tmp_path / "whole", run.recipe, dataset, ranks=2)


def test_what_no_triggerer_hears_stops_all_the_same(airflow_service: AirflowService, start: Start):
    """The teardown task ends what was marked failed, the reaper what has lost its DAG run."""
    marked, deleted = start(), start()
    for training in (marked, deleted):
        training.wait_held()

    with standing_still(airflow_service, "triggerer"):
        with standing_still(airflow_service, "scheduler"):  # it would set it to running again
            airflow_service.api.mark_run(DAG_ID, deleted.dag_run, "queued")
            airflow_service.api.delete_run(DAG_ID, deleted.dag_run)
        until = time.monotonic() + STOPPED_WITHIN_S
        airflow_service.api.mark_task(DAG_ID, marked.dag_run, "train", "failed")
        marked.wait_nothing_left()
        deleted.wait_nothing_left(until - time.monotonic())
        marked.wait_run(StepState.CANCELLED)
        deleted.wait_run(StepState.CANCELLED)
    assert marked.states() == [StepState.CANCELLED]
    assert deleted.states() == [StepState.CANCELLED]


def test_each_way_to_stop_a_run_gives_one_state(airflow_service: AirflowService):
    """The run is *cancelled*; the DAG run goes on only where a user has marked it success. The
    test above deletes one.
    """
    service, api = airflow_service, airflow_service.api

    def command(_: str, run_id: str) -> None:
        with service.settings():
            headrace("cancel", run_id)

    doors: dict[str, tuple[Callable[[str, str], None], str]] = {
        "command": (command, "failed"),
        "page": (lambda _, run_id: api.act("cancel", id=run_id), "failed"),
        "task failed": (lambda run, _: api.mark_task(DAG_ID, run, "train", "failed"), "failed"),
        "task success": (lambda run, _: api.mark_task(DAG_ID, run, "train", "success"), "success"),
        "DAG run failed": (lambda run, _: api.mark_run(DAG_ID, run, "failed"), "failed"),
        "DAG run success": (lambda run, _: api.mark_run(DAG_ID, run, "success"), "success"),
    }
    held = {
        door: service.trigger(OWN_DATA, overrides=["train.function.fate=hold"]) for door in doors
    }
    runs = {door: service.wait_for_run(dag_run) for door, dag_run in held.items()}
    for dag_run in held.values():
        service.wait_task(dag_run, "train", "deferred")
    for door, (act, _) in doors.items():
        act(held[door], runs[door])
    for door, (_, state) in doors.items():
        assert service.wait_end(held[door]) == state, door
        assert service.ledger.run(runs[door]).state is StepState.CANCELLED, door
        service.assert_books_closed(runs[door])


def _overlaps(service: AirflowService, training: HeldTraining) -> list[tuple[str, str]]:
    """Attempts at training that began before the one before them had ended."""
    rows = service.ledger.attempts(training.run_id, "train")
    return [
        (before.key, after.key)
        for before, after in itertools.pairwise(rows)
        if (after.started_at or 0.0) < (before.finished_at or 0.0)
    ]


def _start_step_in_processes(service: AirflowService, run_id: str, number: int) -> list[int]:
    """Start a step from several processes at once; gives the attempt that each was given."""
    environment = {**os.environ, "HEADRACE_HOME": str(service.home)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _START_STEP, run_id],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(number)
    ]
    return [int(process.communicate(timeout=120)[0]) for process in processes]
