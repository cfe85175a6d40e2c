"""The main job on EC2, whose instances are simulated: their user data really runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from headrace.clusters import client
from headrace.clusters.fleet import Fleet
from headrace.clusters.overview import view
from headrace.clusters.records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.load import BUILT_IN
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from headrace.training.checkpoints import step_of
from support import fleet_functions
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, name_of
from support.leases import START_TIMEOUT_S, opened, wait_for_state
from support.paced_run import PacedRun, Waiting, until
from support.training import CODE
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOLD_AT = 12
CHECKPOINT_EVERY = 5
_GONE_WITHIN_S = 120.0


@pytest.fixture
def home(
    headrace_home: Path, digits_folder: Path, ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Recipe `paced`, and sites `aws` and `here` of the same world size."""
    monkeypatch.setenv("HEADRACE_DIGITS", str(digits_folder))
    recipe = yaml.safe_load((BUILT_IN / "recipes" / "digits.yaml").read_text())
    recipe["trainer"] |= {"max_epochs": 1, "checkpoint_every_steps": CHECKPOINT_EVERY}
    (headrace_home / "pace").mkdir()
    model = {"_target_": "paced_digits.PacedDigits", "folder": str(headrace_home / "pace")}
    recipe |= {"name": "paced", "code": [str(CODE)], "model": model, "evaluate": None}
    _write(headrace_home / "recipes" / "paced.yaml", recipe)
    allowed = {"allowed_code": [str(CODE)], "allowed_sources": ["/"]}
    laptop = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text()) | allowed
    _write(headrace_home / "sites" / "here.yaml", laptop | {"name": "here"})
    roles = {
        "cpu": _role(ec2_sim, kind="pool", instance_types=["c5.large", "m5.large"]),
        "gpu": _role(ec2_sim, kind="gang"),
    }
    limits = {"max_leases": 2, "lost_after": 12}
    aws = laptop | {
        "limits": limits,
        "name": "aws",
        "folder": str(headrace_home / "aws"),
        "roles": roles,
    }
    _write(headrace_home / "sites" / "aws.yaml", aws)
    return headrace_home


@pytest.fixture
def site(tmp_path: Path, headrace_home: Path, ec2_sim: Ec2Sim) -> Iterator[Path]:
    """A site's folder; all leases in it are ended afterwards."""
    yield tmp_path
    for folder in (tmp_path / "leases").glob("*/spec.json"):
        client.end(LeaseFolder(folder.parent), grace_s=20)


def test_same_weights_as_here_though_a_member_of_the_gang_was_terminated(
    home: Path, ec2_sim: Ec2Sim, no_leftover_processes: None
):
    """pains 22, 34: a new gang goes on from the checkpoint, and nothing is left."""
    here = PacedRun(home, "here")
    here.go(iter(()))
    ec2_sim.fill("c5.large")
    paced = PacedRun(home, "aws")
    gang = f"headrace-{paced.run.run_id}-gpu"
    terminated: list[str] = []

    def disturb() -> Waiting:
        pool = paced.run.lease_folder(f"{paced.run.run_id}-cpu-1")
        yield from until(lambda: pool.spec.exists() and view(pool).jobs)
        assert "m5.large in us-east-1a; no capacity for c5.large" in view(pool).jobs[0].why
        yield from paced.held_at(HOLD_AT)
        _, second = ec2_sim.alive(gang)
        ec2_sim.terminate(second)
        terminated.append(second.id)
        yield from until(lambda: ec2_sim.alive(f"{gang}-2"))
        paced.tell("hold", None)

    paced.go(disturb())
    lost, whole = paced.attempts()
    assert lost.state is StepState.LOST
    assert f"{terminated[0]}: Client.UserInitiatedShutdown" in str(lost.message)
    step = paced.run.lease_folder(whole.lease_id).step(whole.number)
    events = [json.loads(line) for line in step.events.read_text().splitlines()]
    (launch,) = [each for each in events if each["event"] == "launch"]
    assert step_of(Path(launch["resume"])) == HOLD_AT - HOLD_AT % CHECKPOINT_EVERY
    assert whole.state is StepState.SUCCEEDED
    assert paced.weights() == here.weights()
    assert ec2_sim.alive() == []


def test_a_lost_instance_of_a_pool_is_replaced_and_none_outlives_the_host(
    site: Path, ec2_sim: Ec2Sim
):
    """pains 22: as many instances as there is work for; none for nobody."""
    folder = opened(site, Role(**_role(ec2_sim, kind="pool"), threads_per_node=2))
    assert ec2_sim.alive() == []
    with Fleet.open(folder) as fleet:
        fleet.nodes(2, START_TIMEOUT_S)
        lost, kept = ec2_sim.alive()
        work = fleet.map(fleet_functions.work_for, [0.1] * 40)
        done = dict(next(work) for _ in range(4))
        ec2_sim.terminate(lost, "Server.SpotInstanceTermination")
        assert len(done | dict(work)) == 40
        fleet.nodes(2, START_TIMEOUT_S)
        assert kept in ec2_sim.alive()
        assert [job.why for job in view(folder).ended] == [
            f"EC2 job {name_of(lost)} ended: preempted: Server.SpotInstanceTermination: so it is"
        ]
        record = read_record(folder.host, HostRecord)
        assert record is not None
        guards = _guards(folder)
        assert guards
        for process in [*guards, psutil.Process(record.process.pid)]:
            process.kill()  # as when the machine itself is gone
        wait_until(lambda: not ec2_sim.alive(), _GONE_WITHIN_S, "all instances to end")
        assert ec2_sim.volumes() == []
    wait_for_state(folder, LeaseState.LOST, 90)


def test_the_plan_shows_the_requests_and_what_instances_run(home: Path, ec2_sim: Ec2Sim):
    shown = headrace("plan", "paced", "--site", "aws", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert '"InstanceType": "c5.large"' in shown.stdout
    assert "# without capacity for that: m5.large" in shown.stdout
    assert '"MinCount": 2' in shown.stdout
    assert "shutdown -P +11" in shown.stdout
    assert "headrace.clusters.member" in shown.stdout
    assert ec2_sim.requests == []
    looked = json.loads(headrace("site", "check", "--site", "aws", "--json").stdout)
    _, cpu, gpu = [{each["subject"]: each["seen"] for each in part["findings"]} for part in looked]
    assert json.loads(cpu["IAM policy"])["Statement"][1]["Action"] == [
        "ec2:TerminateInstances", "ec2:GetConsoleOutput"]  # fmt: skip
    assert cpu["c5.large"] == "2 CPUs, 0 GPUs, 4 GiB"
    assert gpu["start"] == "m5.large"
    assert ec2_sim.alive() == []


def _guards(folder: LeaseFolder) -> list[psutil.Process]:
    command = ["-m", "headrace.clusters.local", str(folder.path)]
    return [each for each in psutil.process_iter(["cmdline"])
            if (each.info["cmdline"] or [])[1:] == command]  # fmt: skip


def _role(sim: Ec2Sim, *, kind: str, **ec2: Any) -> dict[str, Any]:
    return {
        "backend": "ec2",
        "kind": kind,
        "nodes": 2,
        "lifetime": 600,
        "batch": {"interface": "lo", "poll": 0.2},
        "ec2": {**sim.values(), **ec2},
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
