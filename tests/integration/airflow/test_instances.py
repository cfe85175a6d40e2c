"""The DAGs, unchanged, on site `aws`: its instances are simulated, their user data really runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.states import StepState
from support.airflow_service import DAG_ID, EC2_SITE, AirflowService, write_ec2_site
from support.ec2_sim import Ec2Sim
from support.held_training import HeldTraining
from support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

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
    training.wait_run(StepState.FAILED, _GONE_WITHIN_S)
    training.wait_nothing_left()
    assert ec2_sim.volumes() == []
    assert service.wait_end(training.dag_run) == "failed"
    assert [lease.role for lease in service.ledger.leases(run_id=training.run_id)] == ["gpu", "cpu"]


def _wait_told(service: AirflowService, training: HeldTraining, words: str) -> None:
    """Wait until the log of the task that waits for the gang tells that."""

    def told() -> bool:
        return words in service.task_log(DAG_ID, training.dag_run, _TASK)

    wait_until(told, 180.0, f"the log to tell: {words}", poll_s=0.5)
