"""A gang on hosts without a queue: two names of one real sshd on loopback."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.batch.job_records import JobSpec, JobState
from headrace.batch.ssh import SshCommands
from headrace.batch.ssh_hosts import JOB, SshHosts
from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_records import HostRecord, job_name
from headrace.clusters.local import marked
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Login
from headrace.recipe.site import Role
from headrace.states import LeaseState
from support.factories import job_spec
from support.leases import START_TIMEOUT_S, opened, wait_for_state
from support.login_node import JOBS, LoginNode
from support.waiting import wait_until

GONE_WITHIN_S = 60.0


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
    folder = opened(tmp_path / "site", _role(hosts))
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
    _nothing_is_left(folder)


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


def _role(hosts: tuple[Login, ...]) -> Role:
    batch = {"interface": "lo", "poll": 0.2, "hosts": hosts, "python": sys.executable}
    return Role(backend="ssh", kind="gang", nodes=2, lifetime=600, batch=batch)


def _nothing_is_left(folder: LeaseFolder) -> None:
    place = str(folder.path.resolve())
    wait_until(lambda: not marked([folder])[place], GONE_WITHIN_S, "the lease's processes to end")
