"""The main job's DAG on a real Slurm: its machines wait in a queue and outlive Airflow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from headrace.cli import airflow_server
from headrace.errors import UserError
from headrace.files.atomic import write_text
from headrace.states import LeaseState, StepState
from support.airflow_service import DAG_ID, AirflowService
from support.command_line import headrace
from support.disturbed import GONE_S, LONG_S, OVERRIDES, Records, Result, training_moment
from support.factories import built_in, write_recipe
from support.held_training import HeldTraining
from support.slurm_dev import DevSlurm
from support.training import CODE
from support.waiting import wait_until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.chaos,
    pytest.mark.slow,
]

SITE = "slurm-dev"
_STEP_S = 1.0
"""Two hundred steps of this take longer than Airflow is away, on any machine."""
_STEPS = 10
"""So many are made before training is let go on quickly to its end."""
_AWAY_S = 25.0
"""Longer than the times after which Airflow gives up a scheduler or a triggerer."""

_DOORS: dict[str, Callable[[AirflowService, HeldTraining], object]] = {
    "task-failed": lambda at, run: at.api.mark_task(DAG_ID, run.dag_run, "train", "failed"),
    "run-failed": lambda at, run: at.api.mark_run(DAG_ID, run.dag_run, "failed"),
    "run-success": lambda at, run: at.api.mark_run(DAG_ID, run.dag_run, "success"),
    "cancel": lambda at, run: at.api.act("cancel", id=run.run_id),
}
"""What a user presses to stop a run: buttons of Airflow, and one of headrace's page."""

_WAITS = re.compile(r"Slurm job \d+ is pending: \w+, expected (\w+ \d+ \w+ )?\d\d:\d\d \w+")


class Site:
    """The built-in site `slurm-dev`, for the Slurm of the tests, with two ranks as elsewhere.

    The model of recipe `digits` pauses before each step when told to, and is else the same.

    Args:
        home: Home of headrace in which it hides the built-in one.
        config: What `SLURM_CONF` must name.
    """

    def __init__(self, home: Path, config: Path) -> None:
        self._file = home / "sites" / f"{SITE}.yaml"
        self._recipe = home / "recipes" / "digits.yaml"
        content = built_in("sites", SITE)
        content["folder"] = str(home)
        content["tiers"] = [{"name": "disk", "folder": str(home / "cache"), "budget": "2GiB"}]
        content["limits"] = {"max_leases": 8, "step_poll": 0.5, "heartbeat": 1}
        for role in content["roles"].values():
            role["batch"] |= {"config": str(config), "poll": 0.5}
        content["roles"]["gpu"]["nodes"] = 1
        # as where Airflow's workers live for a short time
        content["roles"]["cpu"] |= {"nodes": 1, "host": "job"}
        content["allowed_code"] = [str(CODE)]
        self._pace = home / "pace"
        content["allowed_outputs"] = [str(self._pace)]
        self._pace.mkdir(exist_ok=True)
        self.pace(None)
        self._content: dict[str, Any] = content

    def write(self, batch: dict[str, Any] | None = None, **changes: Any) -> None:
        """Write site and recipe, with another first role; runs keep those they were made with."""
        cpu = self._content["roles"]["cpu"]
        cpu = cpu | changes | {"batch": cpu["batch"] | (batch or {})}
        roles = self._content["roles"] | {"cpu": cpu}
        self._file.write_text(yaml.safe_dump(self._content | {"roles": roles}))
        model = {"_target_": "paced_digits.PacedDigits", "folder": str(self._pace)}
        model = built_in("recipes", "digits")["model"] | model
        write_recipe(self._recipe.parents[1], "digits", code=[str(CODE)], model=model)

    def pace(self, seconds: float | None) -> None:
        """Have the model pause so long before each step; None for not at all."""
        if seconds is None:
            (self._pace / "pause").unlink(missing_ok=True)
        else:
            write_text(self._pace / "pause", str(seconds))

    def held(self, service: AirflowService, name: str) -> HeldTraining:
        """A run of this site whose training never ends by itself."""
        return HeldTraining(
            service,
            self._pace / name,
            lambda overrides: service.trigger("held", site=SITE, overrides=overrides),
        )

    def remove(self) -> None:
        """The built-in site and recipe show again."""
        self._file.unlink(missing_ok=True)
        self._recipe.unlink(missing_ok=True)


@pytest.fixture
def site(airflow_service: AirflowService, slurm: DevSlurm):
    found = Site(airflow_service.home, slurm.config)
    found.write()
    yield found
    found.remove()


def test_the_main_job_waits_in_the_queue_and_goes_on_while_airflow_is_away(
    airflow_service: AirflowService,
    slurm: DevSlurm,
    site: Site,
    undisturbed: Result,
    rng: Any,
):
    """pains 5, 6: the work does not need Airflow, and who comes back finds it."""
    service, records = airflow_service, Records(airflow_service.home)
    hold = ("--exclusive", "--nodes=4", "--time=30", "--output=/dev/null", "--wrap=sleep 1800")
    blocker = slurm.run("sbatch", "--parsable", *hold).strip()
    try:
        dag_run = service.trigger(
            site=SITE, overrides=(*OVERRIDES, "pack_role=cpu", "dataset.name=waits")
        )
        run_id = service.wait_for_run(dag_run)
        assert_wait_is_told(service, dag_run, run_id)
    finally:
        slurm.run("scancel", blocker)
    training_moment(records, run_id, rng, most=0.3)
    site.pace(_STEP_S)
    jobs = slurm.queue()

    kill_airflow(service)
    down_since = time.monotonic()
    (attempt,) = records.attempts(run_id, "train")
    done = _steps_done(records, run_id)
    going_on = "the training to go on without Airflow"
    wait_until(lambda: _steps_done(records, run_id) > done + _STEPS, GONE_S, going_on)
    result = records.folder(attempt).result
    assert not result.exists()  # it has trained throughout
    assert slurm.queue() == jobs
    site.pace(None)
    wait_until(result.exists, LONG_S, "the training to end without Airflow")
    assert not records.ledger.run(run_id).state.is_final

    wait_until(lambda: time.monotonic() > down_since + _AWAY_S, 120, "time to pass", poll_s=1)
    service.come_up()
    end = service.wait_end(dag_run)
    assert end == "success", service.why(dag_run, run_id)
    records.assert_settled(run_id)
    service.assert_books_closed(run_id)
    assert records.result(run_id) == undisturbed
    assert [each.state for each in records.attempts(run_id, "train")] == [StepState.SUCCEEDED]
    assert len(records.events(attempt, "launch")) == 1
    wait_until(lambda: slurm.queue() == [], GONE_S, "an empty queue")


def kill_airflow(service: AirflowService) -> None:
    """Kill -9 of the supervisor takes all of Airflow with it; `headrace env` says what to do."""
    psutil.Process(service.server.process.pid).kill()
    with service.settings():
        wait_until(lambda: not airflow_server.processes(), 120, "the guard to end all components")
        assert airflow_server.record_file().exists()
        assert airflow_server.running() is None
        with pytest.raises(UserError, match="headrace up"):
            headrace("env")


def _steps_done(records: Records, run_id: str) -> float:
    status = records.status(run_id, "train")
    return status.progress.done


def assert_wait_is_told(service: AirflowService, dag_run: str, run_id: str) -> None:
    """Why the machines are not there, and when they will be: in log, XCom and `headrace status`."""
    task = "pack"
    service.wait_task(dag_run, task, "deferred")  # holds no worker

    def told() -> bool:
        return _WAITS.search(service.task_log(DAG_ID, dag_run, task)) is not None

    wait_until(told, 120, "the log to tell the expected start", poll_s=0.5)
    assert _WAITS.fullmatch(service.overview(run_id).waits_for)
    assert _WAITS.fullmatch(str(service.xcom(dag_run, task, "machines")))


def test_a_job_that_never_starts_fails_its_task_at_once(
    airflow_service: AirflowService, slurm: DevSlurm, site: Site
):
    """One that Slurm refuses, and one that it would keep in its queue for ever."""
    service = airflow_service
    site.write(batch={"partition": "nope"})
    refused = service.trigger(site=SITE, overrides=["dataset.name=never"])
    service.wait_for_run(refused)
    site.write(lifetime="99h")
    endless = service.trigger(site=SITE, overrides=["dataset.name=never"])
    for dag_run, words in (
        (refused, "invalid partition specified: nope"),
        (endless, "can never start: PartitionTimeLimit"),
    ):
        run_id = service.wait_for_run(dag_run)
        assert service.wait_end(dag_run) == "failed"
        task = service.tasks(dag_run)["pack"]
        assert (task["state"], task["try_number"]) == ("failed", 1)
        assert words in service.task_log(DAG_ID, dag_run, "pack")
        service.assert_books_closed(run_id)
        (lease,) = service.ledger.leases(run_id=run_id)
        assert words in str(lease.why_ended)
        assert lease.state is LeaseState.FAILED
    assert slurm.queue() == []


def test_runs_that_users_stop_leave_the_queue(
    airflow_service: AirflowService, slurm: DevSlurm, site: Site
):
    """pains 9, 22: four runs train at once; each is stopped by another button.

    All of them are cancelled. A DAG run keeps the success that a user has marked it with.
    """
    service = airflow_service
    runs = {door: site.held(service, door) for door in _DOORS}
    for training in runs.values():
        training.wait_held()
    assert len(slurm.queue()) == len(_DOORS)
    for door, training in runs.items():
        _DOORS[door](service, training)
    wait_until(lambda: slurm.queue() == [], GONE_S, "an empty queue", poll_s=0.5)
    for training in runs.values():
        training.wait_nothing_left()
        training.wait_run(StepState.CANCELLED)
    assert [run.states() for run in runs.values()] == [[StepState.CANCELLED]] * len(_DOORS)
    ends = {door: service.wait_end(training.dag_run) for door, training in runs.items()}
    assert ends == {**dict.fromkeys(_DOORS, "failed"), "run-success": "success"}
