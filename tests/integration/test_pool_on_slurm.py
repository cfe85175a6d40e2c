"""Pools on a real Slurm: they grow, lose nodes, shrink, and tell why when they cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.node_marks import spans_of
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace.status.lease import lease_view as view
from headrace.suites.suite_step import run_suite
from support import fleet_functions
from support.leases import START_TIMEOUT_S, lease_spec, opened, submit_look, wait_for_state
from support.paced_run import Waiting, until
from support.scripted_trials import Listed, executions, suite_context, work
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

GONE_WITHIN_S = 60.0


@pytest.fixture
def site(tmp_path: Path, headrace_home: Path) -> Iterator[Path]:
    """A site's folder; all leases in it are ended afterwards."""
    yield tmp_path
    for folder in (tmp_path / "leases").glob("*/spec.json"):
        lease_client.end(LeaseFolder(folder.parent), grace_s=20)


def test_grows_loses_half_its_nodes_and_shrinks_to_nothing(site: Path, slurm: DevSlurm):
    """pains 19, 20, 22: as many jobs as there is work for, lost ones replaced, none for nothing.

    pains 37: what each of them was asked for, began, joined and ended at is written down.
    """
    folder = opened(site, _role(nodes=2, keep_nodes=0.5, threads_per_node=4))
    assert slurm.queue() == []
    with Fleet.open(folder) as fleet:
        fleet.nodes(2, START_TIMEOUT_S)
        jobs = {job.job_id: job.node for job in view(folder).jobs}
        assert sorted(jobs) == sorted(slurm.queue())
        assert sorted(jobs.values()) == ["node-0", "node-1"]
        work = fleet.map(fleet_functions.node_of_slot, [0.3] * 60)
        done = dict(next(work) for _ in range(12))
        slurm.run("scancel", min(jobs))
        done |= dict(work)
        assert len(done) == 60
        assert {*done.values()} >= {"node1", "node2"}
        fleet.nodes(2, START_TIMEOUT_S)
        assert {*slurm.queue()} - {*jobs}
    wait_until(lambda: not slurm.queue(), GONE_WITHIN_S, "an empty queue", poll_s=0.3)
    assert LeaseFiles.read(folder).state(15) is LeaseState.READY
    wait_until(lambda: not view(folder).jobs, GONE_WITHIN_S, "the host to see it")
    with Fleet.open(folder) as fleet:  # and again
        assert fleet.nodes(1, START_TIMEOUT_S)[0].name == "node-0"
        assert len(slurm.queue()) == 1
    *gone, last = spans_of(folder)
    assert len(gone) >= 3
    assert last.ended_at is None
    for each in gone:
        assert each.asked_at <= each.started_at <= each.joined_at <= each.ended_at


def test_a_node_is_replaced_before_its_time_limit_and_no_work_is_lost(
    site: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch
):
    """pains 18: its work goes to the next one, and does not count as having lost its node."""
    monkeypatch.setattr("headrace.clusters.fleet.MAX_LOSSES", 0)
    folder = opened(site, _role(nodes=1, node_lifetime=6, keep_nodes=0.5))
    with Fleet.open(folder) as fleet:
        done = dict(fleet.map(fleet_functions.node_of_slot, [0.3] * 20))
    assert len(done) == 20
    num_jobs = len(list(folder.jobs.glob("*.log")))
    assert num_jobs > 1
    context = suite_context(folder, "suite", trials_per_node=1)
    run_suite(context, Listed(*[{"s": 0.5}] * 12), work())
    assert len(executions(context.run_folder, "ended")) == 12
    assert {attempt for _, attempt in executions(context.run_folder)} == {1}
    assert len(list(folder.jobs.glob("*.log"))) > num_jobs


@pytest.mark.parametrize("host", ["control", "job"])
def test_no_job_outlives_a_killed_host(site: Path, slurm: DevSlurm, host: str):
    """pains 22: no node is held by what nobody serves; nor does one wait in the queue for it."""
    sleep = ("--output=/dev/null", "--wrap=sleep 300")
    blocker = slurm.run("sbatch", "--parsable", "-N3", "--exclusive", *sleep).strip()
    try:
        folder = opened(site, _role(nodes=2, host=host, threads_per_node=3))
        with Fleet.open(folder) as fleet:
            with pytest.raises(Exception, match="changed our minds"):
                fleet.nodes(2, START_TIMEOUT_S, check=lambda: _stop_when_one_waits(folder))
            record = read_record(folder.host, HostRecord)
            psutil.Process(record.process.pid).kill()
            wait_for_state(folder, LeaseState.LOST, 90)
            lease_client.end(folder)
        wait_until(lambda: slurm.queue() == [blocker], GONE_WITHIN_S, "the jobs to end", poll_s=0.3)
        assert LeaseFiles.read(folder).state(0) is LeaseState.LOST
    finally:
        slurm.run("scancel", blocker)


def _stop_when_one_waits(folder: LeaseFolder) -> None:
    seen = view(folder)
    stages = sorted(job.stage for job in seen.jobs)
    if stages[1:] == ["queued"] and stages[0] in ("busy", "idle") and seen.expected_start:
        assert re.match("1 of 2 nodes; 1 pending: (Resources|Priority), ", seen.waits_for)
        raise AssertionError("changed our minds")


def test_jobs_that_die_at_once_stop_the_pool_and_tell_why(site: Path, slurm: DevSlurm):
    """pains 20: a few, with pauses, not a loop; and no node is to blame."""
    folder = opened(site, _role(nodes=2, batch={"prologue": ["echo no such module; exit 7"]}))
    _ask_until_failed(folder)
    why = LeaseFiles.read(folder).why_ended
    assert re.match("[3-5] jobs in a row failed; last: Slurm job ", why)
    assert "failed: NonZeroExitCode\nno such module" in why
    assert len(list(folder.jobs.glob("*.log"))) <= 6
    assert view(folder).bad_nodes == ()
    assert slurm.queue() == []


def test_a_node_on_which_jobs_fail_is_left_out(site: Path, slurm: DevSlurm):
    """pains 20, 34: the queue gives the one free node again and again, which is the bad one."""
    hold = ("--exclusive", "--nodelist=node3,node4", "--output=/dev/null", "--wrap=sleep 300")
    left = [slurm.run("sbatch", "--parsable", *hold).strip()]

    batch = {"prologue": [_bad("node1")], "exclusive": True}

    def free_others_once_it_is_avoided() -> None:
        if left and view(folder).avoids:
            assert "without node1, where jobs failed" in view(folder).waits_for
            slurm.run("scancel", left.pop())

    try:
        folder = opened(site, _role(nodes=2, keep_nodes=0.5, batch=batch))
        with Fleet.open(folder) as fleet:
            fleet.nodes(2, START_TIMEOUT_S, check=free_others_once_it_is_avoided)
            done = dict(fleet.map(fleet_functions.node_of_slot, [0.2] * 12))
    finally:
        slurm.commands.run(("scancel", *left))
    assert len(set(done.values())) == 2
    assert "node1" not in done.values()
    seen = view(folder)
    (avoided,) = seen.avoids
    assert avoided.node == "node1"
    assert "2 jobs ended badly there: Slurm job" in avoided.why
    assert [each.host for each in seen.ended] == ["node1", "node1"]
    assert seen.bad_nodes == ("node1",)
    assert "Avoiding node1: 2 jobs" in folder.log.read_text()


def test_bad_nodes_are_taken_all_the_same_where_there_are_no_others(site: Path, slurm: DevSlurm):
    """pains 34: a pool that excludes all nodes of the cluster would never work."""
    folder = SiteFolder(site).lease("desperate-1")
    twice = f"echo >> {site}/tries; [ $(wc -l < {site}/tries) -gt 2 ] || exit 7"
    role = _role(nodes=1, keep_nodes=0.5, batch={"prologue": [twice]})
    spec = lease_spec(folder, role)
    lease_client.start(folder, spec.model_copy(update={"exclude": ("node1", "node2", "node4")}))
    wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    with Fleet.open(folder) as fleet:
        fleet.nodes(1, START_TIMEOUT_S)
    seen = view(folder)
    assert [each.host for each in seen.ended] == ["node3", "node3"]
    assert seen.avoids == ()
    assert "not available" in seen.takes_all


def test_work_goes_on_when_nodes_are_preempted_and_out_of_time(site: Path, slurm: DevSlurm):
    """pains 18, 20, 31: other nodes follow, no item is lost, and the lease tells the causes."""
    folder = opened(site, _role(nodes=2, keep_nodes=0.5, batch={"exclusive": True}))
    hold = site / "hold"
    hold.touch()

    def all_busy() -> bool:
        return [job.stage for job in view(folder).jobs] == ["busy", "busy"]

    def disturb() -> Waiting:
        yield from until(all_busy)
        urgent = ("--partition=urgent", "--nodes=4", "--exclusive", "--output=/dev/null")
        slurm.run("sbatch", *urgent, "--wrap=sleep 2")
        yield from until(lambda: len(view(folder).ended) == 2 and all_busy())
        late = view(folder).jobs[0].job_id  # the host gives it more time than Slurm does
        slurm.run("scontrol", "update", f"jobid={late}", "endtime=now")
        yield from until(lambda: len(view(folder).ended) == 3)
        hold.unlink()

    disturbing = disturb()
    with Fleet.open(folder) as fleet:
        items = [str(hold)] * 8
        work = fleet.map(
            fleet_functions.node_when_free, items, check=lambda: next(disturbing, None)
        )
        assert sorted(index for index, _ in work) == list(range(8))
    assert not hold.exists()
    causes = [each.why.rpartition("ended: ")[2].partition(":")[0] for each in view(folder).ended]
    assert causes == ["preempted", "preempted", "timed out"]
    assert view(folder).avoids == ()
    wait_until(lambda: not slurm.queue(), GONE_WITHIN_S, "an empty queue", poll_s=0.3)
    assert LeaseFiles.read(folder).state(15) is LeaseState.READY


def _bad(node: str) -> str:
    return f'if [ "$SLURMD_NODENAME" = {node} ]; then echo broken; exit 7; fi'


def _ask_until_failed(folder: LeaseFolder) -> None:
    submit_look(folder)
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)


def _role(*, batch: dict[str, Any] | None = None, **changes: Any) -> Role:
    given = {"backend": "slurm", "kind": "pool", "lifetime": 600, "start_timeout": 60}
    return Role(**given | changes, batch={"interface": "lo", "poll": 0.2} | (batch or {}))
