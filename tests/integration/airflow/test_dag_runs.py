"""Whole DAG runs: of an asset, a suite, on instances, and many at once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from headrace.errors import StepError
from headrace.states import StepState
from headrace.status.logs import log_files
from headrace.status.run import RunRows
from headrace_airflow.assets import dataset_asset, model_asset
from support import job_processes
from support.airflow_service import (
    ARRIVALS,
    DAG_ID,
    EC2_SITE,
    NARROW_LEASES,
    NARROW_SITE,
    OWN_DATA,
    PACK_DAG_ID,
    SITE,
    AirflowService,
    write_ec2_site,
)
from support.ec2_sim import Ec2Sim
from support.held_training import HeldTraining
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_packing_a_new_version_starts_one_training_on_it(airflow_service: AirflowService):
    """The shared Airflow runs with `HEADRACE_TRAIN_SCHEDULE=arrivals`.

    What is packed already is packed no second time, asked for by `airflow` in a shell.

    Nothing happens to that training: one try a task, one attempt a step, one launch of the ranks.
    """
    packing = airflow_service.trigger(ARRIVALS, dag_id=PACK_DAG_ID)
    assert airflow_service.wait_end(packing, dag_id=PACK_DAG_ID) == "success"
    packed = _outputs(airflow_service, packing, PACK_DAG_ID, "pack")
    assert not packed["reused"]

    started = wait_until(lambda: _asset_runs(airflow_service), 120.0, "training to start")
    assert len(started) == 1
    dag_run = started[0]["dag_run_id"]
    assert airflow_service.wait_end(dag_run) == "success"
    run_id = airflow_service.wait_for_run(dag_run)
    run = airflow_service.run(run_id)
    assert (run.request.recipe, run.request.site) == (ARRIVALS, SITE)
    _assert_nothing_was_done_twice(airflow_service, dag_run, run_id)
    found = _outputs(airflow_service, dag_run, DAG_ID, "pack")
    assert found["reused"]
    assert found["dataset"] == packed["dataset"]
    (event,) = airflow_service.api.triggering_events(DAG_ID, dag_run)
    assert event["uri"] == dataset_asset(ARRIVALS).uri
    assert event["extra"]["fingerprint"] == packed["fingerprint"]
    trained = _outputs(airflow_service, dag_run, DAG_ID, "train")
    (model,) = [
        event["extra"]
        for event in airflow_service.api.asset_events(model_asset(ARRIVALS).uri)
        if event["extra"]["run"] == run_id
    ]
    assert model["dataset"] == packed["fingerprint"]
    assert model["checkpoint"] == trained["checkpoint"]
    assert model["metrics"].keys() >= trained["metrics"].keys()

    again = _trigger_in_a_shell(airflow_service)
    assert airflow_service.wait_end(again, dag_id=PACK_DAG_ID) == "success"
    assert _outputs(airflow_service, again, PACK_DAG_ID, "pack")["reused"]
    airflow_service.assert_books_closed(airflow_service.wait_for_run(again, PACK_DAG_ID))
    assert len(airflow_service.api.asset_events(dataset_asset(ARRIVALS).uri)) == 1
    assert len(_asset_runs(airflow_service)) == 1


def _trigger_in_a_shell(service: AirflowService) -> str:
    """Have `airflow` ask for the packing once more; gives the id of the DAG run."""
    script = f"""
        set -euo pipefail
        eval "$(headrace env)"
        airflow dags trigger {PACK_DAG_ID} --run-id from-a-shell \
            --conf '{{"recipe": "{ARRIVALS}", "site": "{SITE}"}}'
    """
    environment = {
        **os.environ,
        "HEADRACE_HOME": str(service.home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    told = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return "from-a-shell"


def _assert_nothing_was_done_twice(service: AirflowService, dag_run: str, run_id: str) -> None:
    tasks = service.tasks(dag_run).values()
    assert {task["try_number"] for task in tasks} == {1}
    view = service.overview(run_id)
    assert view.state is StepState.SUCCEEDED
    assert {(step.name, step.attempt) for step in view.steps} >= {("stage", 1), ("train", 1)}
    assert {step.attempt for step in view.steps} == {1}
    status = service.step_status(run_id, "train")
    assert status.progress.done == status.progress.total
    (train,) = [step for step in view.steps if step.name == "train"]
    assert train.restarts == ()
    events = (Path(train.folder) / "events.jsonl").read_text()
    assert events.count('"event": "launch"') == 1


def _asset_runs(service: AirflowService) -> list[dict[str, Any]]:
    found = service.asked(lambda: service.api.runs(DAG_ID))
    return [run for run in found if run["run_type"] == "asset_triggered"]


def _outputs(service: AirflowService, dag_run: str, dag_id: str, step: str) -> dict[str, Any]:
    run_id = service.wait_for_run(dag_run, dag_id)
    return dict(service.ledger.run(run_id).outputs[step])


_DAG_ID = "headrace_suite"


def test_a_suite_is_four_tasks_and_cleared_it_runs_no_trial_again(airflow_service: AirflowService):
    """Pains 1, 2, 3: the number of trials is not one of tasks."""
    own_data = [airflow_service.trigger(OWN_DATA), _own_suite(airflow_service)]
    words = ["train.function.x=1,2", "seed=range(0,3)"]
    dag_run = airflow_service.trigger("objective", overrides=words, dag_id=_DAG_ID)
    spread = {"sites": [SITE, NARROW_SITE], "policy": "spread", "deadline": "2h", "budget": None}
    conf = {"recipe": "objective", "site": NARROW_SITE, "overrides": words, **spread}
    over_sites = airflow_service.api.trigger(_DAG_ID, conf)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert set(airflow_service.task_states(dag_run, _DAG_ID).values()) == {"success"}
    assert len(airflow_service.tasks(dag_run, _DAG_ID)) == 4
    run_id = airflow_service.wait_for_run(dag_run, _DAG_ID)
    trials = airflow_service.ledger.trials(run_id)
    assert len(trials) == 6
    assert {trial.state for trial in trials} == {StepState.SUCCEEDED}
    journal = airflow_service.run(run_id).folder.journal.read_bytes()
    link = airflow_service.api.links(_DAG_ID, dag_run, "finish")["Run in headrace"]
    tab = f"/dags/{_DAG_ID}/runs/{quote(dag_run)}/plugin/headrace-run"
    assert link == f"{airflow_service.url}{tab}"
    told = airflow_service.api.page("run", dag_id=_DAG_ID, dag_run_id=dag_run)
    assert (told["run_id"], told["kind"], told["state"]) == (run_id, "suite", "succeeded")
    told_trials = {key: told["trials"][key] for key in ("total", "counts", "ended")}
    assert told_trials == {"total": 6, "counts": {"succeeded": 6}, "ended": 6}
    assert len(airflow_service.api.page("trials", id=run_id)["columns"]["number"]) == 6

    airflow_service.api.clear(_DAG_ID, dag_run, ["suite"], downstream=True)
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert airflow_service.run(run_id).folder.journal.read_bytes() == journal
    assert airflow_service.run(run_id).site.name == SITE
    airflow_service.assert_books_closed(run_id)
    for dag_id, own in zip((DAG_ID, _DAG_ID), own_data, strict=True):
        _check_own_data(airflow_service, dag_id, own)
    _check_sites(airflow_service, over_sites)


def _check_sites(airflow_service: AirflowService, dag_run: str) -> None:
    """Over two sites, a suite is the same four tasks, and each trial has its site."""
    assert airflow_service.wait_end(dag_run, dag_id=_DAG_ID) == "success"
    assert len(airflow_service.tasks(dag_run, _DAG_ID)) == 4
    run_id = airflow_service.wait_for_run(dag_run, _DAG_ID)
    assert airflow_service.ledger.run(run_id).site_name == SITE
    trials = airflow_service.ledger.trials(run_id)
    assert {trial.state for trial in trials} == {StepState.SUCCEEDED}
    assert {trial.site for trial in trials} == {SITE, NARROW_SITE}
    table = airflow_service.xcom(dag_run, "suite", "sites", _DAG_ID)
    assert [row["site"] for row in table] == [SITE, NARROW_SITE]
    assert sum(row["ended"] for row in table) == len(trials) == 6
    for row in table:
        assert row["leases"]
        airflow_service.assert_books_closed(row["run_id"])
    airflow_service.assert_books_closed(run_id)


def _own_suite(airflow_service: AirflowService) -> str:
    words = ["train.function.x=1,2"]
    return airflow_service.trigger(OWN_DATA, overrides=words, dag_id=_DAG_ID)


def _check_own_data(airflow_service: AirflowService, dag_id: str, dag_run: str) -> None:
    """Without a dataset what packs and stages is skipped, and says why."""
    assert airflow_service.wait_end(dag_run, dag_id=dag_id) == "success"
    states = airflow_service.task_states(dag_run, dag_id)
    skipped = {task for task, state in states.items() if state == "skipped"}
    unneeded = {"stage", "evaluate"} if dag_id == DAG_ID else set()
    assert skipped == {"pack", *unneeded}, states
    assert {state for task, state in states.items() if task not in skipped} == {"success"}
    why = "Recipe 'own-data' has no step"
    log = airflow_service.task_log(dag_id, dag_run, "pack")
    assert f"{why} 'pack': it has no dataset, so nothing is packed or staged" in log
    plan = airflow_service.task_log(dag_id, dag_run, "prepare")
    assert "nothing is packed or staged" in plan or "Left out, the work continues" in plan
    run_id = airflow_service.wait_for_run(dag_run, dag_id)
    assert {lease.role for lease in airflow_service.ledger.leases(run_id=run_id)} == {"gpu"}
    page = airflow_service.api.page("run", dag_id=dag_id, dag_run_id=dag_run)
    assert [step["name"] for step in page["steps"]] == ["suite" if unneeded == set() else "train"]
    airflow_service.assert_books_closed(run_id)


_GPU = "g5.xlarge"
_NEXT = "g4dn.xlarge"
_TASK = "stage"
_GONE_WITHIN_S = 120.0


@pytest.fixture
def service(airflow_service: AirflowService, ec2_sim: Ec2Sim) -> Iterator[AirflowService]:
    """The shared Airflow, whose site `aws` has simulated instances for once."""
    file = airflow_service.home / "sites" / f"{EC2_SITE}.yaml"
    before = file.read_text()
    write_ec2_site(airflow_service.home, ec2_sim.values())
    yield airflow_service
    file.write_text(before)


def test_a_gang_waits_for_capacity_and_its_instances_end_with_its_task(
    service: AirflowService, ec2_sim: Ec2Sim, tmp_path: Path
):
    """pains 9, 22: what it waits for is seen in Airflow, and it starts by itself."""
    ec2_sim.fill(_GPU, _NEXT)
    training = HeldTraining(
        service,
        tmp_path / "model",
        lambda asked: service.trigger(
            "held", EC2_SITE, [*asked, "pack_role=cpu", "dataset.name=nowhere"]
        ),
    )
    nothing = f"EC2 has no capacity for {_GPU} in us-east-1a; {_NEXT} in us-east-1a"
    _wait_told(service, training, nothing)
    assert nothing in str(service.xcom(training.dag_run, _TASK, "machines"))
    assert nothing in service.overview(training.run_id).waits_for

    ec2_sim.is_silent = True
    _wait_told(service, training, "EC2 says 503: Service Unavailable")
    ec2_sim.fill(_GPU)
    ec2_sim.boot_s, ec2_sim.is_silent = math.inf, False
    _wait_told(service, training, f"{_NEXT} in us-east-1a; no capacity for {_GPU} in us-east-1a")
    ec2_sim.boot_s = 0.0
    training.wait_held()
    (node,) = ec2_sim.alive()
    assert node.instance_type == _NEXT
    service.api.clear(DAG_ID, training.dag_run, ["train"], downstream=True)
    training.wait_held(2)
    assert ec2_sim.alive() == [node]
    assert {task["try_number"] for task in service.tasks(training.dag_run).values()} <= {0, 1, 2}

    service.api.mark_task(DAG_ID, training.dag_run, "train", "failed")
    wait_until(lambda: not ec2_sim.alive(), _GONE_WITHIN_S, "the instances to end")
    training.wait_run(StepState.CANCELLED, _GONE_WITHIN_S)
    training.wait_nothing_left()
    assert ec2_sim.volumes() == []
    assert service.wait_end(training.dag_run) == "failed"
    assert [lease.role for lease in service.ledger.leases(run_id=training.run_id)] == ["gpu", "cpu"]


def _wait_told(service: AirflowService, training: HeldTraining, words: str) -> None:
    """Wait until the log of the task that waits for the gang tells that."""

    def told() -> bool:
        return words in service.task_log(DAG_ID, training.dag_run, _TASK)

    wait_until(told, 180.0, f"the log to tell: {words}", poll_s=0.5)


_NUM_TRIGGERS = 9
"""More than Airflow runs tasks at once (8) and than the site gives leases."""
_CONF = {"recipe": "digits", "site": NARROW_SITE, "overrides": ["dataset.name=twins"]}


@pytest.mark.nightly
def test_triggers_at_once_all_end_well_pack_once_and_leave_nothing(
    airflow_service: AirflowService,
):
    """No lock error, no orphan row, never more leases than the site gives (pains 6, 12).

    All want the same dataset: one packs it, each other one waits for that, or finds it done.
    Whoever triggers again after a lost answer names the DAG run, and gets no second one.
    """
    most_leases = _MostLeases(airflow_service)
    with most_leases:
        dag_runs = _at_once(airflow_service, _NUM_TRIGGERS)
        assert len(set(dag_runs)) == _NUM_TRIGGERS
        with pytest.raises(StepError, match="Airflow answered 409"):
            airflow_service.api.trigger_as(PACK_DAG_ID, dag_runs[0], _CONF)
        ends = [airflow_service.wait_end(each, dag_id=PACK_DAG_ID) for each in dag_runs]
    assert ends == ["success"] * _NUM_TRIGGERS
    assert 1 <= most_leases.seen <= NARROW_LEASES
    run_ids = [airflow_service.wait_for_run(each, PACK_DAG_ID) for each in dag_runs]
    assert len(set(run_ids)) == _NUM_TRIGGERS
    keys = [row.key for row in airflow_service.ledger.runs(limit=1000)]
    assert [sum(dag_run in key for key in keys) for dag_run in dag_runs] == [1] * _NUM_TRIGGERS
    for run_id in run_ids:
        airflow_service.assert_books_closed(run_id)
        assert airflow_service.ledger.run(run_id).state is StepState.SUCCEEDED
        assert [row.attempt for row in airflow_service.ledger.attempts(run_id)] == [1]
        assert len(airflow_service.ledger.leases(run_id=run_id)) == 1
    outputs = [airflow_service.ledger.run(run_id).outputs["pack"] for run_id in run_ids]
    assert sorted(output["reused"] for output in outputs) == [False, *[True] * (_NUM_TRIGGERS - 1)]
    assert len({(output["dataset"], output["fingerprint"]) for output in outputs}) == 1
    logs = "".join(_driver_logs(airflow_service, run_id) for run_id in run_ids)
    assert logs.count("Packed 1797 samples") == 1
    wait_until(
        lambda: not any(job_processes.lease_processes(airflow_service, each) for each in run_ids),
        60.0,
        "the processes of all leases to end",
    )
    log = airflow_service.home / "airflow" / "logs" / "api-server.log"
    assert "database is locked" not in log.read_text(errors="replace")


class _MostLeases:
    """Looks again and again how many leases of the narrow site are open.

    Args:
        service: The Airflow whose ledger is looked at.
    """

    def __init__(self, service: AirflowService) -> None:
        self.seen = 0
        self._service = service
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            active = self._service.ledger.active_leases()
            self.seen = max(self.seen, sum(row.site_name == NARROW_SITE for row in active))


def _at_once(service: AirflowService, number: int) -> list[str]:
    """Trigger the packing from so many threads at the same moment."""
    barrier = threading.Barrier(number)

    def trigger(_index: int) -> str:
        barrier.wait()
        return service.api.trigger(PACK_DAG_ID, _CONF)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(trigger, range(number)))


def _driver_logs(service: AirflowService, run_id: str) -> str:
    with service.settings():
        logs = log_files(RunRows.named(run_id))
        found = [file for _, file in logs if file.stem == "driver"]
    return "".join(file.read_text() for file in found)
