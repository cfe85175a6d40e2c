"""Leases and suites on simulated EC2 whose instances fail or are taken away."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.queue_state import read_state
from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import BadNodes
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from headrace.status.lease import lease_view
from headrace.status.lease import lease_view as view
from support import fleet_functions
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, client_error, name_of
from support.held_suite import HeldSuite
from support.leases import START_TIMEOUT_S, opened, start
from support.paced_run import Waiting, until
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_GONE_WITHIN_S = 60.0


@pytest.fixture
def site(tmp_path: Path, headrace_home: Path, ec2_sim: Ec2Sim) -> Iterator[Path]:
    """A site's folder; all leases in it are ended afterwards."""
    yield tmp_path
    ec2_sim.is_silent = False
    for folder in (tmp_path / "leases").glob("*/spec.json"):
        lease_client.end(LeaseFolder(folder.parent), grace_s=20)


def test_two_leases_wait_for_capacity_and_go_on_while_ec2_is_silent(site: Path, ec2_sim: Ec2Sim):
    """pains 17, 22: names do not mix, nothing is given up, and what is closed ends all the same."""
    ec2_sim.fill("m5.large")
    role = _role(ec2_sim, kind="pool", keep_nodes=600)
    one, other = (opened(site, role, lease_id=each) for each in ("demo-1", "demo-11"))

    def capacity_comes() -> None:
        if "no capacity for m5.large in us-east-1a" in lease_view(one).waits_for:
            ec2_sim.refuse = None

    with Fleet.open(one) as fleet, Fleet.open(other) as idle:
        fleet.nodes(1, START_TIMEOUT_S, check=capacity_comes)
        idle.nodes(1, START_TIMEOUT_S)
        (kept,), (gone,) = (ec2_sim.alive(f"headrace-{x.lease_id}-") for x in (one, other))
        work = fleet.map(fleet_functions.work_for, [0.1] * 60)
        done = dict(next(work) for _ in range(4))
        ec2_sim.is_silent = True
        lease_client.request_close(other, "enough")
        wait_until(other.closed.exists, _GONE_WITHIN_S, "the other lease to close")
        assert LeaseFiles.read(other).why_ended == "enough"
        wait_until(lambda: gone not in ec2_sim.alive(), _GONE_WITHIN_S, "its instance to end")
        assert len(done | dict(work)) == 60
        assert LeaseFiles.read(one).state(15.0) is LeaseState.READY
        wait_until(lambda: _failures(one) >= 3, _GONE_WITHIN_S, "more questions without answer")
        told = "".join(x.log.read_text() for x in (one, other)).count("asked again later")
        assert told <= _failures(one) + 1  # botocore's own repetitions, and ticks, are not told
        ec2_sim.terminate(kept, "Server.InternalError")
        ec2_sim.is_silent = False
        wait_until(lambda: lease_view(one).ended, _GONE_WITHIN_S, "the pool to see it")
        assert fleet.nodes(1, START_TIMEOUT_S)
    started = [name_of(each) for each in ec2_sim.instances]
    assert len(started) == len(set(started)) == 3


def test_a_member_that_never_joins_is_named_and_the_whole_gang_ends(site: Path, ec2_sim: Ec2Sim):
    """pains 15, 22: it boots, and never comes to its work."""
    ec2_sim.boot_s = math.inf
    stuck = 'if [ "$HEADRACE_NODE_INDEX" = 1 ]; then sleep 600; fi'
    role = _role(ec2_sim, kind="gang", start_timeout=15)
    batch = role.batch.model_copy(update={"prologue": (stuck,)})
    folder = start(site, role.model_copy(update={"batch": batch}))
    wait_until(lambda: len(ec2_sim.alive()) == 2, _GONE_WITHIN_S, "the instances")
    _, second = sorted(ec2_sim.alive(), key=lambda each: int(each.ami_launch_index))
    assert (
        LeaseFiles.read(folder).state(15.0) is LeaseState.STARTING
    )  # the control side looks now and then
    ec2_sim.boot_s = 0.0
    wait_until(folder.closed.exists, START_TIMEOUT_S, "the gang to be given up")
    assert LeaseFiles.read(folder).state(15.0) is LeaseState.FAILED
    assert "nodes joined within 15 s; no worker came from" in LeaseFiles.read(folder).why_ended
    assert second.id in LeaseFiles.read(folder).why_ended
    bad = LeaseFiles.read(folder).get(BadNodes)
    assert second.id in bad.nodes
    lease_client.end(folder)
    wait_until(lambda: not ec2_sim.alive(), _GONE_WITHIN_S, "all instances to end")


def _failures(folder: LeaseFolder) -> int:
    (file,) = (folder.path.parent / ".queue").glob("state*.json")
    return read_state(file).num_failures


def _role(sim: Ec2Sim, *, kind: str, **changes: Any) -> Role:
    content = {
        "backend": "ec2",
        "kind": kind,
        "nodes": 2 if kind == "gang" else 1,
        "lifetime": 600,
        "batch": {"interface": "lo", "poll": 0.2},
        "ec2": sim.values(),
    }
    return Role.model_validate(content | changes)


_USD = {"c5.large": 7200.0, "m5.large": 3600.0}


def test_trials_go_on_elsewhere_after_a_spot_notice_and_pay_for_their_own_instances(
    headrace_home: Path, ec2_sim: Ec2Sim, no_leftover_processes: None
):
    """pains 22, 37: nothing more begins on the instance; none stays, and each has its price."""
    notes = headrace_home / "notes"
    notes.mkdir()
    prices = {kind: {"spot": usd} for kind, usd in _USD.items()}
    suite = HeldSuite(
        headrace_home,
        {
            "backend": "ec2",
            "kind": "pool",
            "nodes": 2,
            "lifetime": 600,
            "keep_nodes": 0.5,
            "batch": {"interface": "lo", "poll": 0.2},
            "ec2": {
                **ec2_sim.values(),
                "instance_types": list(_USD),
                "markets": ["spot"],
                "prices": prices,
            },
        },
        {
            "train": {"function": {"_target_": "objectives.held", "x": 1.0, "notes": str(notes)}},
            "suite": {
                "objectives": [{"metric": "value"}],
                "trials_per_node": 1,
                "grid": {"train.function.x": [1.0, 2.0, 3.0, 4.0]},
            },
        },
    )

    def only_one_c5(instance_type: str, is_spot: bool) -> None:
        if instance_type == "c5.large" and ec2_sim.instances:
            raise client_error("InsufficientInstanceCapacity", "no more of these")

    ec2_sim.refuse = only_one_c5

    ran: dict[str, int] = {}

    def disturb() -> Waiting:
        yield from suite.attempts_are({1: 1, 2: 1})
        dear, cheap = ec2_sim.alive()
        assert (dear.instance_type, cheap.instance_type) == tuple(_USD)
        ran.update({each.machines[0]: number for number, each in suite.begun().items()})
        assert ran.keys() == {dear.id, cheap.id}
        ec2_sim.notices[dear.id] = '{"action": "terminate"}'
        pool = suite.run.lease_folder(f"{suite.run.run_id}-gpu-1")
        yield from until(lambda: [job for job in view(pool).jobs if "is taken away" in job.why])
        known_s = time.monotonic() + 3.0  # the driver looks each second how long nodes stay
        yield from until(lambda: time.monotonic() > known_s)
        (notes / f"go-{ran[dear.id]}").touch()
        yield from suite.attempts_are({3: 1})
        yield from until(lambda: dear not in ec2_sim.alive())
        ec2_sim.terminate(cheap, "Server.SpotInstanceTermination")
        yield from until(lambda: any(not end.is_final for end in suite.ends()))
        (notes / "go").touch()

    suite.go(disturb())
    ends = suite.ends()
    assert sorted(end.number for end in ends if end.state is StepState.SUCCEEDED) == [1, 2, 3, 4]
    (lost,) = [end for end in ends if end.state is StepState.LOST]
    kinds = {each.id: each.instance_type for each in ec2_sim.instances}
    usage = suite.usage()
    for end in ends:
        row, kind = usage[end.number, end.attempt], kinds[end.machines[0]]
        terms = (row.machine_kind, row.usd_per_hour, row.price_source)
        assert terms == (kind, _USD[kind], "site file")
        assert row.usd == pytest.approx(row.node_s * _USD[kind] / 3600)
    assert (
        sum(row.machine_kind == "c5.large" for row in usage.values()) == 1
    )  # none after the notice
    both = usage[lost.number, 1], usage[lost.number, 2]
    assert both[0].usd > 0
    assert both[0].cause != "succeeded"
    assert usage[3, 1].boot_s > 0  # of the instance that it waited for
    shown = json.loads(headrace("cost", suite.run.run_id, "--by", "trial", "--json").stdout)
    told = {each["trial"]: each["usd"] for each in shown}
    assert told[str(lost.number)] == pytest.approx(sum(row.usd for row in both))
    assert ec2_sim.alive() == []
