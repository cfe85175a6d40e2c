"""The main job on EC2, whose instances are simulated: their user data really runs."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from headrace.batch.meter import Machine, Price
from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.files import step_of
from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord, Waiting
from headrace.clusters.local import marked
from headrace.clusters.pages import pages_of
from headrace.errors import BudgetError
from headrace.execution import decisions, ticks
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.ledger.rows import AttemptRecord
from headrace.recipe.recipe import RetryPolicy
from headrace.recipe.site import Role
from headrace.runs import site_machines
from headrace.runs.planning import AHEAD_S
from headrace.states import LeaseState, StepState
from headrace.status.lease import lease_view as view
from headrace_ec2 import api as ec2_api
from support import fleet_functions, paced_run
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, name_of
from support.factories import write_recipe, write_site, write_yaml
from support.leases import START_TIMEOUT_S, opened, submit_look, wait_for_state
from support.paced_run import PacedRun, until
from support.rank_processes import process_name
from support.s3_servers import KEY, SECRET
from support.training import CODE, weights_here
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

TAKEN_AT, LOST_AT, LAST_AT = 4, 14, 20
_PAUSE_S = 0.5  # ranks look about every two seconds, which are four steps then
_PRICES = {"m5.large": {"on-demand": 0.096, "spot": 0.03}}
_GONE_WITHIN_S = 120.0


@pytest.fixture
def home(
    headrace_home: Path, digits_folder: Path, ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Recipe `paced`, and sites `aws` and `here` of the same world size."""
    monkeypatch.setenv("HEADRACE_DIGITS", str(digits_folder))
    (headrace_home / "pace").mkdir()
    write_recipe(
        headrace_home, "paced", code=[str(CODE)], evaluate=None,
        trainer={"max_epochs": 1, "checkpoint_every_steps": 1000},
        model={"_target_": "paced_digits.PacedDigits", "folder": str(headrace_home / "pace")},
    )  # fmt: skip
    allowed = {"allowed_code": [str(CODE)], "allowed_sources": ["/"]}
    write_site(headrace_home, "here", **allowed)
    roles = {
        "cpu": _role(ec2_sim, kind="pool", instance_types=["c5.large", "m5.large"]),
        "gpu": _role(ec2_sim, kind="gang", markets=["spot"]),
    }
    limits = {"max_leases": 2, "lost_after": 12}
    folder = str(headrace_home / "aws")
    write_site(headrace_home, "aws", roles=roles, limits=limits, folder=folder, **allowed)
    return headrace_home


@pytest.fixture
def site(tmp_path: Path, headrace_home: Path, ec2_sim: Ec2Sim) -> Iterator[Path]:
    """A site's folder; all leases in it are ended afterwards."""
    yield tmp_path
    for folder in (tmp_path / "leases").glob("*/spec.json"):
        lease_client.end(LeaseFolder(folder.parent), grace_s=20)


def test_same_weights_as_here_though_ec2_was_silent_and_members_of_the_gang_were_taken_away(
    home: Path,
    ec2_sim: Ec2Sim,
    no_leftover_processes: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """pains 22, 23, 34: new gangs go on from the last checkpoint, and nothing is left.

    While EC2 is silent, packing ends, its lease is closed and a gang is asked for.
    """
    monkeypatch.setattr(ec2_api, "_ATTEMPTS", 1)
    monkeypatch.setattr(decisions, "_SILENT_PAUSE_S", 0.5)
    ec2_api._client.cache_clear()
    ec2_sim.fill("c5.large")
    paced = PacedRun(home, "aws")
    gang = f"headrace-{paced.run.run_id}-gpu"
    named: list[str] = []

    def second_of(generation: int) -> Any:
        _, second = ec2_sim.alive(f"{gang}-{generation}")
        named.append(second.id)
        return second

    def saved() -> float:
        return checkpoints.progress_in(paced.run.folder.checkpoints)

    def disturb() -> paced_run.Waiting:
        paced.tell("pause", _PAUSE_S)
        pool = paced.run.lease_folder(f"{paced.run.run_id}-cpu-1")
        yield from until(lambda: pool.spec.exists() and view(pool).jobs)
        assert "m5.large in us-east-1a; no capacity for c5.large" in view(pool).jobs[0].why
        ec2_sim.is_silent = True
        waiting = paced.run.lease_folder(f"{paced.run.run_id}-gpu-1").waiting
        asked: set[float] = set()
        while len(asked) <= RetryPolicy().max_failures:
            record = read_record(waiting, Waiting)
            asked |= set() if record is None else {record.at}
            yield
        assert "EC2 says 503: " in LeaseFiles.read(LeaseFolder(waiting.parent)).wait().why
        ec2_sim.is_silent = False
        yield from paced.held_at(TAKEN_AT)
        pages = pages_of(paced.lease())  # as Airflow's pages ask for them
        with urllib.request.urlopen(f"{pages.url}status", context=pages.key) as shown:
            assert shown.status == 200
        ec2_sim.notices[second_of(1).id] = '{"action": "terminate", "time": "soon"}'
        yield from until(paced.lease().notice.exists)
        paced.tell("hold", LOST_AT)  # it goes on, sees the notice, and is held in the next gang
        yield from until(lambda: len(paced.attempts()) == 2)
        yield from paced.held_at(LOST_AT)
        lost = second_of(2)
        ec2_sim.risks[lost.id] = '{"noticeTime": "now"}'
        yield from until(paced.lease().at_risk.exists)
        paced.tell("hold", LAST_AT)
        yield from until(lambda: saved() > LOST_AT)
        ec2_sim.terminate(lost)
        yield from until(lambda: ec2_sim.alive(f"{gang}-3"))
        paced.tell("pause", None)
        paced.tell("hold", None)

    paced.go(disturb())
    taken, lost, whole = paced.attempts()
    assert taken.state is StepState.PREEMPTED
    assert f"machines are taken away: spot notice for {named[0]}" in str(taken.message)
    assert lost.state is StepState.LOST
    assert f"{named[1]}: Client.UserInitiatedShutdown" in str(lost.message)
    assert TAKEN_AT < _resumed_at(paced, lost) < LOST_AT < _resumed_at(paced, whole) <= LAST_AT
    assert whole.state is StepState.SUCCEEDED
    (packed,) = paced.records.attempts(paced.run.run_id, "pack")
    dataset = packed.outputs["dataset"]
    assert paced.weights() == weights_here(home / "whole", paced.run.recipe, dataset, ranks=2)
    assert ec2_sim.alive() == []
    _assert_requests_are_closed(ec2_sim)
    assert len({each["client_token"] for each in ec2_sim.requests}) == len(ec2_sim.requests)
    assert len([each for each in ec2_sim.instances if name_of(each).startswith(gang)]) == 3 * 2
    leases = paced.records.ledger.leases(run_id=paced.run.run_id)
    assert not [each.lease_id for each in leases if each.state.is_active]
    told = [each for each in caplog.messages if "asked for again later" in each]
    assert 1 <= len(told) < RetryPolicy().max_failures
    _check_costs(paced, named[1])


def _resumed_at(paced: PacedRun, attempt: AttemptRecord) -> int:
    """The step that an attempt went on from."""
    step = paced.run.lease_folder(attempt.lease_id).step(attempt.number)
    events = [json.loads(line) for line in step.events.read_text().splitlines()]
    (launch,) = [each for each in events if each["event"] == "launch"]
    return step_of(Path(launch["resume"]))


def _check_costs(paced: PacedRun, lost: str) -> None:
    """pains 37: all machines are counted and priced, those of the lost gangs too."""
    told = json.loads(headrace("status", paced.run.run_id, "--json").stdout)["cost"]
    of_gangs = next(line for line in told["lines"] if line["role"] == "gpu")
    assert (of_gangs["kind"], of_gangs["market"], of_gangs["machines"]) == ("m5.large", "spot", 6)
    assert told["unpriced"] == 0
    assert of_gangs["usd"] == pytest.approx(of_gangs["hours"] * 0.03)
    lease = f"{paced.run.run_id}-gpu-2"
    shown = json.loads(headrace("lease", "show", lease, "--site", "aws", "--json").stdout)
    assert lost in {each["machine_id"] for each in shown["machines"]}
    for each in shown["machines"]:
        assert (each["place"], each["price_source"]) == ("us-east-1a", "site file")
        assert each["billed_s"] >= max(60.0, each["ended_at"] - each["started_at"])
        assert each["created_at"] <= each["started_at"] <= each["booted_at"] + 1.0
        assert each["booted_at"] <= each["prepared_at"] <= each["joined_at"] <= each["ended_at"]
        assert 0.0 < each["join_s"] < each["billed_s"]
    told = headrace("lease", "show", lease, "--site", "aws").stdout
    assert "2 x m5.large (spot)" in told
    assert "$0.03 an hour (site file)" in told


def test_a_run_that_has_cost_its_budget_stops_with_a_checkpoint_and_says_why(
    home: Path, monkeypatch: pytest.MonkeyPatch, no_leftover_processes: None
):
    """pains 37: here on machines of this one, of which somebody says that they cost."""
    site = home / "sites" / "here.yaml"
    content = yaml.safe_load(site.read_text())
    write_yaml(site, content | {"limits": content["limits"] | {"budget": 1000.0}})
    meter = _Meter()
    monkeypatch.setattr(site_machines, "meter_of", meter.of)
    monkeypatch.setattr(ticks, "ENFORCED_EVERY_S", 0.5)
    paced = PacedRun(home, "here")

    def disturb() -> paced_run.Waiting:
        paced.tell("pause", _PAUSE_S)
        yield from paced.held_at(TAKEN_AT)
        meter.age_s = 1000.0 - AHEAD_S
        yield from until(paced.lease().notice.exists)
        paced.tell("hold", LOST_AT)  # it goes on until it sees that

    with pytest.raises(BudgetError, match=r"has cost \$\d.*`limits.budget` of site here is \$1000"):
        paced.go(disturb())
    (stopped,) = paced.attempts()
    assert stopped.state is StepState.PREEMPTED
    assert "the run has used up its budget of $1000.00" in str(stopped.message)
    assert TAKEN_AT < checkpoints.progress_in(paced.run.folder.checkpoints) < LOST_AT
    assert paced.records.ledger.run(paced.run.run_id).state is StepState.FAILED
    told = headrace("status", paced.run.run_id)
    assert re.search(r"gpu: \$[\d,.]+: 1 x a-box \(rented\), 0\.\d+ h", told.stdout)


class _Meter:
    """Says of gangs that they have a machine, which costs a dollar a second."""

    age_s = 0.0
    """How long that has been there."""

    least_billed_s = 0.0
    advice = ""

    def of(self, role: Role, *, asks_all: bool = False) -> _Meter | None:
        return self if role.kind == "gang" else None

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        kinds = {"kind": "a-box", "market": "rented", "place": "here"}
        started_at = time.time() - self.age_s
        return (Machine(machine_id="n1", job=job_name, started_at=started_at, **kinds),)

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        return {each.machine_id: self.price for each in machines}

    def offers(self) -> dict[str, Price | None]:
        return {"a-box": self.price}

    price = Price(usd_per_hour=3600.0, source="contract")


def test_a_lost_instance_of_a_pool_is_replaced_and_none_outlives_the_host(
    site: Path, ec2_sim: Ec2Sim
):
    """pains 22: as many instances as there is work for; none for nobody."""
    role = _role(ec2_sim, kind="pool", markets=["spot"])
    folder = opened(site, Role(**role, threads_per_node=2))
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
        work = fleet.map(fleet_functions.work_for, [0.1] * 80)
        done = dict(next(work) for _ in range(4))
        ec2_sim.notices[kept.id] = '{"action": "terminate"}'
        assert len(done | dict(work)) == 80
        wait_until(lambda: kept not in ec2_sim.alive(), START_TIMEOUT_S, "it to leave")
        fleet.nodes(2, START_TIMEOUT_S)
        wait_until(lambda: len(view(folder).ended) == 2, START_TIMEOUT_S, "its end to be told")
        assert [job.why for job in view(folder).ended] == [
            f"EC2 job {name_of(lost)} ended: preempted: Server.SpotInstanceTermination: so it is",
            f"EC2 job {name_of(kept)} ended: preempted: taken away: spot notice for {kept.id}: "
            '{"action": "terminate"}',
        ]
        _kill_host_and_guards(folder)
        wait_until(lambda: not ec2_sim.alive(), _GONE_WITHIN_S, "all instances to end")
        assert ec2_sim.volumes() == []
    wait_for_state(folder, LeaseState.LOST, 90)


def test_instances_that_never_ran_anything_are_reaped(
    home: Path, ec2_sim: Ec2Sim, no_leftover_processes: None
):
    """pains 22: a wrong image, and host and guards were killed; nothing on the node ends it."""
    ec2_sim.boots = False
    folder = opened(home / "aws", Role(**_role(ec2_sim, kind="pool")))
    submit_look(folder)
    wait_until(ec2_sim.alive, START_TIMEOUT_S, "an instance")
    _assert_requests_are_closed(ec2_sim, *(file.read_text() for file in folder.tls.iterdir()))
    (instance,) = ec2_sim.alive()
    (seen,) = json.loads(headrace("cloud", "list", "--json").stdout)["found"]
    assert (seen["id"], seen["lease"], seen["stray"]) == (instance.id, "alive", "")
    _kill_host_and_guards(folder)
    reaped = headrace("lease", "reap")
    assert (
        f"instance {instance.id} (m5.large in us-east-1a) of lease demo-1: ended" in reaped.stdout
    )
    assert (ec2_sim.alive(), ec2_sim.volumes()) == ([], [])
    lease_client.end(folder)


def test_the_plan_shows_the_requests_and_what_instances_run(home: Path, ec2_sim: Ec2Sim):
    shown = headrace("plan", "paced", "--site", "aws", "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert '"InstanceType": "c5.large"' in shown.stdout
    assert "  cost unknown: no price is known of c5.large (on-demand)" in shown.stdout
    assert "  costs $0.01 at most: 2 x 0:10:00 x $0.03 an hour of m5.large (spot)" in shown.stdout
    assert "# without capacity for that: m5.large" in shown.stdout
    assert '"MinCount": 2' in shown.stdout
    assert "shutdown -P +11" in shown.stdout
    assert "headrace.clusters.member" in shown.stdout
    assert ec2_sim.requests == []
    looked = json.loads(headrace("site", "check", "--site", "aws", "--json").stdout)
    _, cpu, gpu = [{each["subject"]: each["seen"] for each in part["findings"]} for part in looked]
    assert json.loads(cpu["IAM policy"])["Statement"][1]["Action"] == [
        "ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:GetConsoleOutput"]  # fmt: skip
    assert cpu["c5.large"] == "2 CPUs, 0 GPUs, 4 GiB"
    assert gpu["start"] == "m5.large (spot)"
    assert ec2_sim.alive() == []


def _assert_requests_are_closed(sim: Ec2Sim, *secrets: str) -> None:
    """No secret goes into user data, and no token-less request reaches the metadata service."""
    assert sim.requests
    for request in sim.requests:
        text = request["user_data"]
        assert not [each for each in ("PRIVATE KEY", KEY, SECRET, *secrets) if each in text]
        assert request["metadata_options"]["HttpTokens"] == "required"


def _kill_host_and_guards(folder: LeaseFolder) -> None:
    """As when the machine itself is gone."""
    record = read_record(folder.host, HostRecord)
    assert record is not None
    guards = _guards(folder)
    assert guards
    for process in [*guards, psutil.Process(record.process.pid)]:
        process.kill()


def _guards(folder: LeaseFolder) -> list[psutil.Process]:
    (found,) = marked([folder]).values()
    return [each for each in found if process_name(each) == "guard"]


def _role(sim: Ec2Sim, *, kind: str, **ec2: Any) -> dict[str, Any]:
    return {
        "backend": "ec2",
        "kind": kind,
        "nodes": 2,
        "lifetime": 600,
        "batch": {"interface": "lo", "poll": 0.2},
        "ec2": {**sim.values(), "prices": _PRICES, **ec2},
    }
