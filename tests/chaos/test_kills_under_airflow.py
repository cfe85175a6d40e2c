"""Kill -9 at a random moment of the training, one test a process: the job ends as if untouched.

Each DAG run must end in success after Airflow's own retries, with the weights and figures of the
undisturbed run to the last bit, each test sample counted once, and nothing left running.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from headrace.states import FailureClass, StepState
from support import job_processes
from support.airflow_service import AirflowService
from support.disturbed import GONE_S, LONG_S, OVERRIDES, Records, Result, kill, training_moment
from support.leftovers import describe
from support.waiting import wait_until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ONCE = [StepState.SUCCEEDED]
LOST_ONCE = [StepState.LOST, StepState.SUCCEEDED]


class Job:
    """A run of the main job under Airflow that is to be disturbed.

    Args:
        service: Airflow.
        rng: Chooses moment and victim.
    """

    def __init__(self, service: AirflowService, rng: random.Random) -> None:
        self.service = service
        self.records = Records(service.home)
        self._rng = rng
        self.dag_run = service.trigger(overrides=OVERRIDES)
        self.run_id = service.wait_for_run(self.dag_run)

    def reach_training(self) -> float:
        """Wait for the random moment; gives the steps done."""
        return training_moment(self.records, self.run_id, self._rng)

    def kill_one_of(self, find: Callable[[AirflowService, str], list[psutil.Process]]) -> None:
        """Kill a random one of the run's processes of some kind."""
        kill(self._rng.choice(sorted(find(self.service, self.run_id), key=lambda one: one.pid)))

    def assert_ends_like(self, undisturbed: Result) -> None:
        """What holds after every disturbance."""
        state = self.service.wait_end(self.dag_run, LONG_S)
        tasks = self.service.task_states(self.dag_run)
        attempts = [
            (one.step, one.attempt, one.state.value, one.message)
            for one in self.records.ledger.attempts(self.run_id)
        ]
        assert (state, set(tasks.values())) == ("success", {"success"}), (tasks, attempts)
        self.records.assert_settled(self.run_id)
        assert self.records.result(self.run_id) == undisturbed
        self._assert_nothing_runs()

    def _assert_nothing_runs(self) -> None:
        def left() -> list[psutil.Process]:
            return job_processes.lease_processes(self.service, self.run_id)

        try:
            wait_until(lambda: not left(), GONE_S, "the processes of the run's leases to end")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{describe(left())}") from late

    def states(self, step: str = "train") -> list[StepState]:
        """How the attempts at a step ended."""
        return [one.state for one in self.records.attempts(self.run_id, step)]

    def tries(self, task: str = "train") -> int:
        """How often Airflow has tried a task."""
        return int(self.service.tasks(self.dag_run)[task]["try_number"])

    def launches(self) -> list[dict[str, Any]]:
        """All launches of the training's ranks, over all attempts."""
        return [
            launch
            for attempt in self.records.attempts(self.run_id, "train")
            for launch in self.records.events(attempt, "launch")
        ]

    def assert_went_on(self) -> None:
        """Training was launched anew once, then from checkpoints only.

        A rank may also abort as it leaves (seen on crowded machines); that is one launch more.
        """
        resumed = [launch["resume"] for launch in self.launches()]
        assert resumed[0] is None
        assert len(resumed) >= 2
        assert all(resumed[1:])


@pytest.fixture
def job(airflow_service: AirflowService, undisturbed: Result, rng: random.Random) -> Job:
    """A job that has just been triggered; the run to compare it with is over."""
    return Job(airflow_service, rng)


def test_an_undisturbed_run_under_airflow_equals_the_direct_one(job: Job, undisturbed: Result):
    job.assert_ends_like(undisturbed)
    assert job.states() == ONCE
    assert job.tries() == 1
    assert len(job.launches()) == 1


@pytest.mark.parametrize("name", ["scheduler", "triggerer"])
def test_a_component_of_airflow_is_killed(
    name: str, job: Job, airflow_service: AirflowService, undisturbed: Result
):
    job.reach_training()
    before = job_processes.component(airflow_service, name)
    kill(before)
    job.assert_ends_like(undisturbed)
    assert job_processes.component(airflow_service, name).pid != before.pid
    assert job.states() == ONCE  # the work never noticed
    assert len(job.launches()) == 1


@pytest.mark.parametrize("role", ["runner", "supervisor"])
def test_the_task_process_is_killed(
    role: str,
    job: Job,
    airflow_service: AirflowService,
    undisturbed: Result,
    rng: random.Random,
):
    """The code of task `train` runs for a moment only, to submit or to collect; one is hit."""
    find = {"runner": job_processes.task_runner, "supervisor": job_processes.task_supervisor}[role]
    if rng.random() < 0.5:
        job.reach_training()  # so it is the segment that collects
    task_instance = str(airflow_service.tasks(job.dag_run)["train"]["id"])
    process = wait_until(
        lambda: find(airflow_service, task_instance), LONG_S, "task train to run", poll_s=0.02
    )
    kill(process)
    job.assert_ends_like(undisturbed)
    assert job.tries() in (1, 2)  # a process that had not yet told of its start costs no try
    assert job.states() == ONCE  # the second try found the work of the first
    assert len(job.launches()) == 1


def test_the_lease_host_is_killed(job: Job, airflow_service: AirflowService, undisturbed: Result):
    job.reach_training()
    kill(job_processes.lease_host(airflow_service, job.run_id))
    job.assert_ends_like(undisturbed)
    assert job.states() == LOST_ONCE
    first, second = job.records.attempts(job.run_id, "train")
    assert first.failure_class is FailureClass.LOST
    assert "host" in first.message
    assert first.lease_id != second.lease_id
    job.assert_went_on()


def test_the_step_driver_is_killed(job: Job, undisturbed: Result):
    job.reach_training()
    job.kill_one_of(job_processes.step_drivers)
    job.assert_ends_like(undisturbed)
    assert job.states() == LOST_ONCE
    first, second = job.records.attempts(job.run_id, "train")
    assert first.failure_class is FailureClass.LOST
    assert "signal 9" in first.message
    assert first.lease_id == second.lease_id
    job.assert_went_on()


@pytest.mark.parametrize("kind", ["dask_workers", "ranks"])
def test_a_process_that_trains_is_killed(kind: str, job: Job, undisturbed: Result):
    steps_before = job.reach_training()
    job.kill_one_of(getattr(job_processes, kind))
    job.assert_ends_like(undisturbed)
    assert job.states() == ONCE
    assert job.tries() == 1
    attempt = job.records.attempts(job.run_id, "train")[0]
    assert attempt.outputs["restarts"] >= 1  # a rank may also abort as it leaves, and is healed
    job.assert_went_on()
    resumed_from = job.launches()[1]["resume"]
    print(f"killed after step {steps_before:g}, went on from {resumed_from}")
