"""Kill -9 at random moments of the training: the job ends as if untouched.

Several processes are killed in each job, each when the one before has been made good. Each DAG run
must end in success, with the weights and figures of the undisturbed run to the last bit, each test
sample counted once, and nothing left running.
"""

from __future__ import annotations

import itertools
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
]

_LOOKS_WITH_AN_ID = 200

FindTask = Callable[[AirflowService, str], psutil.Process | None]


class Job:
    """A run of the main job under Airflow that is to be disturbed.

    It may fail only where it has come further.

    Args:
        service: Airflow.
        rng: Chooses moment and victim.
    """

    def __init__(self, service: AirflowService, rng: random.Random) -> None:
        self.service = service
        self.records = Records(service.home)
        self._rng = rng
        self.dag_run = service.trigger(overrides=(*OVERRIDES, "retry.max_failures=1"))
        self.run_id = service.wait_for_run(self.dag_run)

    def reach_training(self, least: float = 0.1, most: float = 0.7) -> float:
        """Wait for a random moment between two parts of the training; gives the steps done."""
        return training_moment(self.records, self.run_id, self._rng, least, most)

    def kill_one_of(self, find: Callable[[AirflowService, str], list[psutil.Process]]) -> None:
        """Kill a random one of the run's processes of some kind."""
        kill(self._rng.choice(sorted(find(self.service, self.run_id), key=lambda one: one.pid)))

    def assert_ends_like(self, undisturbed: Result) -> None:
        """What holds after every disturbance."""
        state = self.service.wait_end(self.dag_run, LONG_S)
        tasks = self.service.task_states(self.dag_run)
        why = self.service.why(self.dag_run, self.run_id)
        assert (state, set(tasks.values())) == ("success", {"success"}), why
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


@pytest.fixture
def job(airflow_service: AirflowService, undisturbed: Result, rng: random.Random) -> Job:
    """A job that has just been triggered; the run to compare it with is over."""
    return Job(airflow_service, rng)


def test_airflow_its_tasks_the_step_driver_and_the_lease_host_are_killed(
    job: Job, airflow_service: AirflowService, undisturbed: Result, rng: random.Random
):
    """Pains 8: the scheduler dies while a new triggerer takes over what the killed one watched.

    The code of task `train` runs for a moment to submit, and for another to collect; the process
    that runs it is hit in one of them, the one that watches over it in the other. The work notices
    nothing of that; the deaths of its driver and of its host cost an attempt each, and no try of
    Airflow's. A rank or a
    worker is replaced below Airflow's sight, as in `tests/chaos/slurm` and `tests/chaos/campaign`.
    """
    at_submit, at_collect = rng.sample(
        [job_processes.task_runner, job_processes.task_supervisor], 2
    )
    _kill_while_it_runs(at_submit, airflow_service, job)
    job.reach_training(0.05, 0.2)
    for name in ("triggerer", "scheduler"):
        assert not job.records.ledger.run(job.run_id).state.is_final
        before = job_processes.component(airflow_service, name)
        kill(before)
        assert job_processes.component(airflow_service, name).pid != before.pid
    job.reach_training(0.3, 0.4)
    assert job.states() == [StepState.RUNNING]
    assert len(job.launches()) == 1
    job.kill_one_of(job_processes.step_drivers)
    job.reach_training(0.6, 0.75)
    kill(job_processes.lease_host(airflow_service, job.run_id))
    wait_until(lambda: job.states()[2:] == [StepState.RUNNING], LONG_S, "the third attempt")
    _kill_while_it_runs(at_collect, airflow_service, job)
    job.assert_ends_like(undisturbed)
    # at most one for each of its own processes that was killed, and one if the task was waiting in
    # its own process when the scheduler died
    assert 1 <= job.tries() <= 4
    assert job.states() == [StepState.LOST, StepState.LOST, StepState.SUCCEEDED]
    without_driver, without_host, whole = job.records.attempts(job.run_id, "train")
    assert {without_driver.failure_class, without_host.failure_class} == {FailureClass.LOST}
    assert "signal 9" in without_driver.message
    assert "host" in without_host.message
    assert without_driver.lease_id == without_host.lease_id != whole.lease_id
    first, *resumed = [launch["resume"] for launch in job.launches()]
    assert first is None
    assert all(resumed)


def _kill_while_it_runs(find: FindTask, service: AirflowService, job: Job) -> None:
    """Kill a process of task `train`, whose id is another one after each retry.

    Airflow is asked for the id now and then only, as each answer takes it some time. A process that
    has come and gone between two looks, as it may that collects, is left out.
    """
    ids = itertools.chain.from_iterable(
        itertools.repeat(str(service.tasks(job.dag_run)["train"]["id"]), _LOOKS_WITH_AN_ID)
        for _ in itertools.count()
    )

    def found() -> psutil.Process | bool:
        process = find(service, next(ids))
        return process or bool(job.records.attempts(job.run_id, "evaluate"))

    process = wait_until(found, LONG_S, "task train to run", poll_s=0.01)
    if isinstance(process, psutil.Process):
        kill(process)
    else:
        print("missed: task train ran between two looks")
