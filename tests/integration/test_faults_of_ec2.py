"""Leases on EC2 to which something happens; the instances are simulated, and really run."""

from __future__ import annotations

import math
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
from headrace.states import LeaseState
from headrace.status.lease import lease_view
from support import fleet_functions
from support.ec2_sim import Ec2Sim, name_of
from support.leases import START_TIMEOUT_S, opened, start
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
