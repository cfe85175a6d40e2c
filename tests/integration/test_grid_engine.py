"""Gangs, pools and `headrace site check` on a real Grid Engine; each host has its own network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.local import marked
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.states import FailureClass, LeaseState
from headrace.status.lease import lease_view
from support import fleet_functions
from support.grid_engine import GridEngine
from support.leases import START_TIMEOUT_S, opened, wait_for_state
from support.site_checks import check, graded, site_file
from support.waiting import wait_until

GONE_WITHIN_S = 60.0


def test_a_gang_works_on_two_hosts_and_leaves_nothing(
    grid_engine: GridEngine, tmp_path: Path, headrace_home: Path
):
    """pains 15, 22: the second host's part is started by `qrsh -inherit`."""
    folder = opened(tmp_path / "site", _role(grid_engine))
    _works(folder, grid_engine)
    lease_client.end(folder, grace_s=20, reason="the test is over")
    assert LeaseFiles.read(folder).state(15) is LeaseState.CLOSED
    _nothing_is_left(folder, grid_engine)


def test_a_gang_whose_job_is_deleted_is_lost_and_says_why(
    grid_engine: GridEngine, tmp_path: Path, headrace_home: Path
):
    """pains 31: from the accounting, which is later than the queue."""
    folder = opened(tmp_path / "site", _role(grid_engine))
    host = read_record(folder.host, HostRecord)
    assert host is not None
    psutil.Process(host.process.pid).suspend()  # it cannot record its end
    (job_id,) = grid_engine.queue()
    grid_engine.run("qdel", job_id)
    wait_for_state(folder, LeaseState.LOST, START_TIMEOUT_S)
    cause = lease_client.cause(folder)
    assert cause is not None
    assert f"Grid Engine job {job_id} ended: cancelled" in cause.why
    assert cause.failure_class is FailureClass.LOST
    lease_client.end(folder)
    _nothing_is_left(folder, grid_engine)


@pytest.mark.parametrize("first", [True, False])
def test_a_gang_that_loses_a_host_ends_on_the_others(
    grid_engine: GridEngine, tmp_path: Path, headrace_home: Path, first: bool
):
    """pains 22, 34: Grid Engine cannot delete the job of a first host before it is back.

    If another host is gone, the job ends by itself, or else the gang gives up first.
    """
    folder = opened(tmp_path / "site", _role(grid_engine))
    (job_id,) = grid_engine.queue()
    hosts = _works(folder, grid_engine)
    grid_engine.lose_power(hosts[0 if first else 1])
    ended = {LeaseState.LOST} if first else {LeaseState.LOST, LeaseState.FAILED}
    try:
        wait_until(lambda: LeaseFiles.read(folder).state(15) in ended, START_TIMEOUT_S, "its end")
        cause = lease_client.cause(folder)
        blamed = () if cause is None else (cause.failure_class, *cause.bad_nodes)
        assert blamed == ((FailureClass.INFRASTRUCTURE, hosts[0]) if first else ())
        lease_client.end(folder)
        place = str(folder.path.resolve())
        wait_until(lambda: not marked([folder])[place], GONE_WITHIN_S, "its processes to end")
        assert grid_engine.queue() == ([job_id] if first else [])
    finally:
        grid_engine.heal()
    _nothing_is_left(folder, grid_engine)


def test_a_pool_grows_avoids_a_bad_host_replaces_a_node_and_shrinks(
    grid_engine: GridEngine, tmp_path: Path, headrace_home: Path
):
    """pains 19, 20, 22, 34: its host is a job too, which submits those of the nodes."""
    bad = "if [ $(hostname) = node1 ]; then echo broken; exit 7; fi"
    batch = _given(grid_engine, prologue=[bad])["batch"]
    pool = {"kind": "pool", "host": "job", "host_options": ["-l h=node4"], "keep_nodes": 0.5}
    folder = opened(tmp_path / "site", _role(grid_engine, batch=batch, **pool))
    assert len(grid_engine.queue()) == 1
    with Fleet.open(folder) as fleet:
        fleet.nodes(2, START_TIMEOUT_S)
        work = fleet.map(fleet_functions.work_for, [0.2] * 16)
        done = dict(next(work) for _ in range(6))
        grid_engine.run("qdel", grid_engine.queue()[-1])
        done |= dict(work)
        assert len(done) == 16
        fleet.nodes(2, START_TIMEOUT_S)
    assert [each.node for each in lease_view(folder).avoids] in ([], ["node1"])
    wait_until(lambda: len(grid_engine.queue()) == 1, GONE_WITHIN_S, "all nodes to be given back")
    assert LeaseFiles.read(folder).state(15) is LeaseState.READY
    lease_client.end(folder, grace_s=20, reason="the test is over")
    _nothing_is_left(folder, grid_engine)


@pytest.mark.parametrize(
    ("changes", "wrong", "told"),
    [
        ({}, "", ""),
        ({"batch": {"partition": "al.q"}}, "queue", "Did you mean 'all.q'?"),
        ({"batch": {"partition": "gpu.q"}}, "environment", "the queue gpu.q has no 'mpi'"),
        ({"batch": {"gpus_per_node": 9}}, "qsub -w v", "no suitable queues"),
        ({"batch": {"account": "nope"}}, "qsub -w v", '"nope" does not exist'),
    ],
)
def test_site_check(
    grid_engine: GridEngine, headrace_home: Path, changes: dict[str, Any], wrong: str, told: str
):
    given = {"partition": "all.q", **changes.get("batch", {})}
    code, found = check(site_file(headrace_home, _given(grid_engine, **given)))
    failed = graded(found, "gpu", "fail")
    assert (code, told in failed.get(wrong, "")) == (bool(wrong), True)
    passed = graded(found, "gpu", "ok")
    assert "SGE 8.1.9" in passed["commands"]
    if not wrong:
        assert passed["time"].startswith("1 h of 48 h")
    assert grid_engine.queue() == []


def test_a_master_that_is_down_is_named(
    grid_engine: GridEngine, headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SGE_QMASTER_PORT", "1")
    code, found = check(site_file(headrace_home, _given(grid_engine)))
    assert (code, "unable to send message to qmaster" in str(found)) == (1, True)


def _role(grid_engine: GridEngine, **changes: Any) -> Role:
    return Role.model_validate(_given(grid_engine) | changes)


def _given(grid_engine: GridEngine, **batch: Any) -> dict[str, Any]:
    shared = {"interface": grid_engine.interface, "poll": 0.2, "parallel_environment": "mpi"}
    role = {"backend": "sge", "kind": "gang", "nodes": 2, "lifetime": "1h"}
    return {**role, "batch": shared | batch}


def _works(folder: LeaseFolder, grid_engine: GridEngine) -> list[str]:
    """Return the hosts of a gang's nodes, in their order."""
    info = lease_client.info(folder)
    assert info is not None
    assert list(info.job_ids) == grid_engine.queue()
    with Fleet.open(folder) as fleet:
        nodes = fleet.nodes(2, timeout_s=1)
        assert [node.name for node in nodes] == ["node-0", "node-1"]
        hosts = [fleet.call(node, socket.gethostname) for node in nodes]
    assert len(set(hosts)) == 2
    return hosts


def _nothing_is_left(folder: LeaseFolder, grid_engine: GridEngine) -> None:
    wait_until(lambda: grid_engine.queue() == [], GONE_WITHIN_S, "the job to end")
    place = str(folder.path.resolve())
    wait_until(lambda: not marked([folder])[place], GONE_WITHIN_S, "the lease's processes to end")
