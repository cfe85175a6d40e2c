"""Gangs and pools on fakes of PBS and LSF, and on hosts without a queue."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.batch.job_records import JobSpec, JobState
from headrace.batch.ssh import SshCommands
from headrace.batch.ssh_hosts import JOB, SshHosts
from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord, job_name
from headrace.clusters.local import marked
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Login
from headrace.recipe.site import Role
from headrace.states import FailureClass, LeaseState
from headrace.status.lease import lease_view
from support import fleet_functions
from support.factories import job_spec
from support.fake_queues.commands import FakeQueue, fake_queue
from support.leases import START_TIMEOUT_S, opened, submit_look, wait_for_state
from support.login_node import JOBS, LoginNode
from support.waiting import wait_until

JOB_VARIABLES = {"pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}
GONE_WITHIN_S = 60.0


@pytest.fixture
def queue(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeQueue]:
    made = fake_queue(request.param, tmp_path / "fake")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.end()


@pytest.mark.parametrize("queue", ["lsf"], indirect=True)
def test_a_gang_opens_works_and_leaves_nothing(
    queue: FakeQueue, tmp_path: Path, headrace_home: Path
):
    """pains 15, 22: one allocation of N nodes, which leaves the queue with its lease."""
    folder = opened(tmp_path / "site", _role("lsf"))
    _works(folder, queue, "lsf")
    lease_client.end(folder, grace_s=20, reason="the test is over")
    assert LeaseFiles.read(folder).state(15) is LeaseState.CLOSED
    _nothing_is_left(folder, queue)
    assert len(queue.jobs()) == 1


@pytest.mark.parametrize("queue", ["pbs"], indirect=True)
def test_a_gang_whose_job_is_deleted_by_hand_is_lost_and_says_why(
    queue: FakeQueue, tmp_path: Path, headrace_home: Path
):
    """pains 15, 31: told from the history of the batch system."""
    folder = opened(tmp_path / "site", _role("pbs"))
    _works(folder, queue, "pbs")
    host = read_record(folder.host, HostRecord)
    assert host is not None
    (job,) = queue.jobs()
    psutil.Process(host.process.pid).suspend()  # it cannot say goodbye
    assert queue.commands.run(("qdel", f"{job['number']}.fakepbs")).code == 0
    wait_for_state(folder, LeaseState.LOST, START_TIMEOUT_S)
    cause = lease_client.cause(folder)
    assert f"PBS job {job['number']}.fakepbs ended: cancelled" in cause.why
    assert cause.failure_class is FailureClass.LOST
    lease_client.end(folder)
    _nothing_is_left(folder, queue)


@pytest.mark.parametrize(
    ("queue", "backend", "host", "delete"),
    [
        ("pbs", "pbs", "job", "qdel"),
        ("lsf", "lsf", "control", "bkill"),
    ],
    indirect=["queue"],
)
def test_a_pool_grows_loses_a_node_and_shrinks_to_nothing(
    queue: FakeQueue, backend: str, host: str, delete: str, tmp_path: Path, headrace_home: Path
):
    """pains 19, 20, 22: as on Slurm; a node that was deleted or has crashed is replaced."""
    changes = {"kind": "pool", "host": host, "keep_nodes": 0.5}
    folder = opened(tmp_path / "site", _role(backend, **changes))
    hosts = {"job": 1, "control": 0}[host]
    assert len(queue.jobs()) == hosts
    with Fleet.open(folder) as fleet:
        fleet.nodes(2, START_TIMEOUT_S)
        work = fleet.map(fleet_functions.work_for, [0.2] * 16)
        done = dict(next(work) for _ in range(6))
        lost = queue.jobs()[hosts]
        (worker,) = _workers(folder, lost["number"], JOB_VARIABLES[backend])
        if delete:
            assert queue.commands.run((delete, lost["number"])).code == 0
        else:
            worker.kill()
        done |= dict(work)
        assert len(done) == 16
        fleet.nodes(2, START_TIMEOUT_S)
        assert len(queue.jobs()) == hosts + 3
    wait_until(lambda: len(_living(queue)) == hosts, GONE_WITHIN_S, "all nodes to be given back")
    assert LeaseFiles.read(folder).state(15) is LeaseState.READY
    lease_client.end(folder, grace_s=20, reason="the test is over")
    _nothing_is_left(folder, queue)


@pytest.mark.parametrize("queue", ["pbs"], indirect=True)
def test_a_node_on_which_jobs_fail_is_at_least_named(
    queue: FakeQueue, tmp_path: Path, headrace_home: Path
):
    """pains 20, 34: the queue gives the bad node again and again; PBS cannot be told not to."""
    bad = 'if grep -q fake1 "$PBS_NODEFILE"; then echo broken; exit 7; fi'
    batch = {"interface": "lo", "poll": 0.2, "prologue": [bad]}
    changes = {"kind": "pool", "host": "control", "keep_nodes": 0.5, "batch": batch}
    folder = opened(tmp_path / "site", _role("pbs", **changes))
    submit_look(folder)
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    assert lease_view(folder).takes_all == "PBS cannot leave nodes out"
    assert "3 jobs in a row failed" in lease_view(folder).why_ended
    assert {each.host for each in lease_view(folder).ended} == {"fake1"}
    lease_client.end(folder, grace_s=20, reason="the test is over")
    _nothing_is_left(folder, queue)


def _workers(folder: LeaseFolder, number: str, variable: str) -> list[psutil.Process]:
    """Processes of a pool's job that are Dask workers."""
    found = []
    for each in marked([folder])[str(folder.path.resolve())]:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            is_of_job = each.environ().get(variable, "").partition(".")[0] == number
            if is_of_job and "headrace.clusters.worker" in each.cmdline():
                found.append(each)
    return found


def _living(queue: FakeQueue) -> list[str]:
    return [job["number"] for job in queue.jobs() if job["state"] != "ended"]


def _role(backend: str, **changes: Any) -> Role:
    batch = {"interface": "lo", "poll": 0.2}
    given = {"backend": backend, "kind": "gang", "nodes": 2, "lifetime": 600, "batch": batch}
    return Role.model_validate(given | changes)


def _works(folder: LeaseFolder, queue: FakeQueue, backend: str) -> None:
    info = lease_client.info(folder)
    assert info is not None
    (job,) = queue.jobs()
    assert [each.partition(".")[0] for each in info.job_ids] == [job["number"]]
    with Fleet.open(folder) as fleet:
        nodes = fleet.nodes(2, timeout_s=1)
        assert [node.name for node in nodes] == ["node-0", "node-1"]
        assert len({fleet.call(node, os.getpid) for node in nodes}) == 2
        ids = {fleet.call(node, os.getenv, JOB_VARIABLES[backend]) for node in nodes}
        assert ids == set(info.job_ids)


def _nothing_is_left(folder: LeaseFolder, queue: FakeQueue) -> None:
    wait_until(
        lambda: {job["state"] for job in queue.jobs()} == {"ended"}, GONE_WITHIN_S, "the job to end"
    )
    place = str(folder.path.resolve())
    wait_until(lambda: not marked([folder])[place], GONE_WITHIN_S, "the lease's processes to end")


@pytest.fixture
def hosts(login_node: LoginNode, tmp_path: Path) -> Iterator[tuple[Login, ...]]:
    """Two names of one host; what this test's jobs leave in the user's home is removed."""
    known = login_node.folder / "known_hosts"
    known.write_text(known.read_text() + known.read_text().replace("127.0.0.1", "localhost"))
    first = login_node.login
    other = first.model_copy(update={"host": first.host.replace("127.0.0.1", "localhost")})
    yield (first, other)
    for lease in (tmp_path / "site" / "leases").glob("*"):
        for job in JOBS.glob(f"{job_name(LeaseFolder(lease))}*"):
            shutil.rmtree(job)


def test_a_gang_on_two_hosts_works_is_lost_with_its_host_process_and_leaves_nothing(
    hosts: tuple[Login, ...], tmp_path: Path, headrace_home: Path
):
    """pains 22, 31: the processes on all hosts end with the lease."""
    folder = opened(tmp_path / "site", _hosts_role(hosts))
    info = lease_client.info(folder)
    assert info.job_ids == (job_name(folder),)
    with Fleet.open(folder) as fleet:
        nodes = fleet.nodes(2, timeout_s=1)
        assert len({fleet.call(node, os.getpid) for node in nodes}) == 2
        assert {fleet.call(node, os.getenv, JOB) for node in nodes} == set(info.job_ids)
    record = read_record(folder.host, HostRecord)
    psutil.Process(record.process.pid).kill()
    wait_for_state(folder, LeaseState.LOST, START_TIMEOUT_S)
    cause = lease_client.cause(folder)
    assert f"SSH job {job_name(folder)} ended: failed: exit code 137" in cause.why
    lease_client.end(folder)
    _nothing_runs(folder)


def test_a_job_is_started_once_and_cancelled_on_all_hosts(
    hosts: tuple[Login, ...], login_node: LoginNode, tmp_path: Path
):
    """pains 17: an answer that was lost makes no second job."""
    system = _system(hosts, login_node)
    pids = tmp_path / "pids"
    spec = _job(tmp_path, f"echo $$ >> {pids}; exec sleep 600")
    assert [system.submit(spec) for _ in range(3)] == [spec.name] * 3
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 90, "both to run")
    assert [each.state for each in system.find(spec.name)] == [JobState.RUNNING]
    system.cancel([spec.name])
    left = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(map(psutil.pid_exists, left)), 120, "both to be cleared away")
    assert system.poll([spec.name, "nobody"])[spec.name].state is JobState.CANCELLED


@pytest.mark.parametrize("failing", [0, 1])
def test_a_job_ends_on_all_hosts_when_one_fails(
    hosts: tuple[Login, ...], login_node: LoginNode, tmp_path: Path, failing: int
):
    """Pains 22: as where a batch system ends the job; else the lease would wait for that host."""
    system = _system(hosts, login_node)
    pids = tmp_path / "pids"
    both = f"echo $$ >> {pids}; until [ $(wc -l < {pids}) = 2 ]; do sleep 0.05; done"
    spec = _job(tmp_path, f"{both}; [ $HEADRACE_NODE_INDEX != {failing} ] || exit 3; sleep 600")
    system.submit(spec)
    wait_until(lambda: system.poll([spec.name])[spec.name].state.is_final, 90, "the job to end")
    status = system.poll([spec.name])[spec.name]
    assert (status.state, status.reason) == (JobState.FAILED, "exit code 3")
    left = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(map(psutil.pid_exists, left)), 90, "both to be cleared away")


def _system(hosts: tuple[Login, ...], login_node: LoginNode) -> SshHosts:
    sockets = login_node.folder / "ssh"
    return SshHosts(hosts, {each.host: SshCommands(each, {}, folder=sockets) for each in hosts})


def _job(folder: Path, text: str) -> JobSpec:
    return job_spec(
        name=f"headrace-test-{uuid.uuid4().hex}", command=("sh", "-c", text), nodes=2,
        time_limit_s=600.0, folder=str(folder), log=str(folder / "log"),
    )  # fmt: skip


def _hosts_role(hosts: tuple[Login, ...]) -> Role:
    batch = {"interface": "lo", "poll": 0.2, "hosts": hosts, "python": sys.executable}
    return Role(backend="ssh", kind="gang", nodes=2, lifetime=600, batch=batch)


def _nothing_runs(folder: LeaseFolder) -> None:
    place = str(folder.path.resolve())
    wait_until(lambda: not marked([folder])[place], GONE_WITHIN_S, "the lease's processes to end")
