"""What the control side does to leases, and which processes count as a lease's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from filelock import FileLock

from headrace.batch.job_records import JobView
from headrace.clusters import lease_client, lease_machines, local_cluster
from headrace.clusters.lease_files import LeaseFiles, write_heartbeat
from headrace.clusters.lease_records import Ending, HostRecord, Waiting
from headrace.clusters.lifetime import BY_SIGNAL
from headrace.clusters.local import mark, marked
from headrace.clusters.scheduler import make_keys
from headrace.errors import LeaseError
from headrace.files.atomic import write_record, write_text
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.processes import zygote
from headrace.processes.children import Child
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role
from headrace.states import FailureClass, LeaseState
from support.factories import demo_info, demo_lease, write_lease
from support.leases import lease_spec
from support.runs import ended_process
from support.waiting import wait_until

_CLOSED = Ending(state=LeaseState.CLOSED, reason="done")
_GONE = JobView(is_ended=True, why="preempted", failure_class=FailureClass.PREEMPTED)


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    """A lease that was asked for; no host was started."""
    return write_lease(SiteFolder(tmp_path).lease("demo-gpu-1"))


def _beat_ago(lease: LeaseFolder, seconds: float) -> None:
    """What the host of a lease wrote that fell silent then."""
    write_text(lease.heartbeat, f"{time.time() - seconds} {time.monotonic() - seconds}\n")


def test_life_of_a_lease_in_files(folder: LeaseFolder) -> None:
    assert LeaseFiles.read(folder).state(20) is LeaseState.STARTING
    write_record(folder.host, HostRecord(process=ProcessIdentity.of()))
    write_heartbeat(folder)
    assert LeaseFiles.read(folder).state(20) is LeaseState.STARTING
    assert lease_client.info(folder) is None
    info = demo_info(folder.lease_id, dashboard_url="http://127.0.0.1:2")
    write_record(folder.info, info)
    assert LeaseFiles.read(folder).state(20) is LeaseState.READY
    assert lease_client.info(folder) == info
    assert LeaseFiles.read(folder).why_ended == ""
    write_record(folder.closed, _CLOSED)
    assert LeaseFiles.read(folder).state(20) is LeaseState.CLOSED
    assert LeaseFiles.read(folder).why_ended == "done"


def test_a_lease_without_a_job_waits_as_long_as_somebody_asks_for_it(tmp_path: Path) -> None:
    lease = SiteFolder(tmp_path).lease("demo-gpu-1")
    role = Role(backend="slurm", kind="gang")
    write_lease(lease, role=role)
    write_record(lease.waiting, Waiting(reason="site limit of 2 jobs"))
    assert LeaseFiles.read(lease).wait().why == "site limit of 2 jobs"
    write_record(lease.waiting, Waiting(reason="site limit of 2 jobs", at=time.time() - 3600))
    assert LeaseFiles.read(lease).wait().why == ""


def test_a_host_here_is_not_lost_when_the_clock_is_set_or_the_machine_has_slept(
    folder: LeaseFolder,
) -> None:
    """A laptop that is opened again shows an hour between two heartbeats, in which nothing ran."""
    write_record(folder.host, HostRecord(process=ProcessIdentity.of()))
    write_text(folder.heartbeat, f"{time.time() - 3600} {time.monotonic()}\n")
    assert LeaseFiles.read(folder).state(20) is LeaseState.STARTING
    assert LeaseFiles.read(folder).why_ended == ""


def test_a_host_on_another_machine_is_judged_by_its_heartbeat(folder: LeaseFolder) -> None:
    there = ProcessIdentity(host="another-machine", pid=1, started_s=0.0)
    write_record(folder.host, HostRecord(process=there))
    write_heartbeat(folder)
    assert LeaseFiles.read(folder).state(20) is LeaseState.STARTING
    _beat_ago(folder, 21)
    assert LeaseFiles.read(folder).state(20) is LeaseState.LOST


def test_a_dead_host_is_a_loss_at_once(folder: LeaseFolder) -> None:
    """A recycled pid is not taken for the host either: the start time is compared."""
    write_record(folder.host, HostRecord(process=ended_process()))
    write_heartbeat(folder)
    assert LeaseFiles.read(folder).state(20) is LeaseState.LOST
    assert "died" in LeaseFiles.read(folder).why_ended
    mine = ProcessIdentity.of()
    recycled = mine.model_copy(update={"started_s": mine.started_s - 100})
    write_record(folder.host, HostRecord(process=recycled))
    assert LeaseFiles.read(folder).state(20) is LeaseState.LOST


def test_end_of_a_lost_lease_keeps_the_reason(folder: LeaseFolder) -> None:
    write_record(folder.host, HostRecord(process=ended_process()))
    lease_client.end(folder, grace_s=60)
    assert LeaseFiles.read(folder).state(20) is LeaseState.LOST
    assert "died" in LeaseFiles.read(folder).why_ended


def test_the_end_removes_what_killed_processes_were_writing(folder: LeaseFolder) -> None:
    write_record(folder.host, HostRecord(process=ended_process()))
    parts = folder.step(1).parts / "launch-001"
    parts.mkdir(parents=True)
    killed = [parts / ".failure-1.json.3ea55de0ff9d", folder.path / ".heartbeat.0123456789ab"]
    others = [folder.step(1).path / ".cancel.0123456789ab", parts / ".hidden"]
    for path in (*killed, *others):
        path.touch()
    lease_client.end(folder)
    assert [path.exists() for path in killed] == [False, False]
    assert [path.exists() for path in others] == [True, True]


def test_the_keys_of_a_lease_are_its_owners_alone(folder: LeaseFolder) -> None:
    make_keys(folder)
    made = [folder.tls, *folder.tls.iterdir()]
    assert {each.stat().st_mode & 0o077 for each in made} == {0}


_SLOW_HOST = """
import pathlib, sys, time
lease = pathlib.Path(sys.argv[1])
while not (lease / "close").exists():
    time.sleep(0.01)
(lease / "closed").write_text('{"state": "closed", "reason": "asked"}')
time.sleep(0.3)
(lease / "last").touch()
"""


def test_an_end_waits_for_the_host_to_be_gone(folder: LeaseFolder) -> None:
    command = [sys.executable, "-c", _SLOW_HOST, str(folder.path)]
    with subprocess.Popen(command) as child:
        write_record(folder.host, HostRecord(process=ProcessIdentity.of(child.pid)))
        write_heartbeat(folder)
        lease_client.end(folder, grace_s=60)
        assert (folder.path / "last").exists()


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        (LeaseState.LOST, "the host died", "preempted"),
        (LeaseState.CLOSED, f"{BY_SIGNAL} SIGTERM", "preempted"),
        (LeaseState.CLOSED, "ended by request", "ended by request"),
    ],
)
def test_the_queue_tells_why_a_lease_ended_that_nobody_asked_to(
    folder: LeaseFolder, state: LeaseState, reason: str, told: str
) -> None:
    assert not LeaseFiles.read(folder).ended_by_itself
    write_record(folder.cause, _GONE)
    write_record(folder.closed, Ending(state=state, reason=reason))
    assert LeaseFiles.read(folder).ended_by_itself == (told == "preempted")
    assert LeaseFiles.read(folder).why_ended == told


def test_a_lease_ended_before_it_was_started_is_never_started(tmp_path: Path) -> None:
    """A slow caller must not open machines that the reaper has already written off."""
    lease = SiteFolder(tmp_path).lease("demo-gpu-1")
    lease_client.end(lease)
    lease_client.start(lease, demo_lease(lease.lease_id))
    assert not lease.host.exists()
    assert LeaseFiles.read(lease).state(20) is LeaseState.LOST


def test_the_first_reason_to_close_stays(folder: LeaseFolder) -> None:
    lease_client.request_close(folder, "first")
    lease_client.request_close(folder, "second")
    assert folder.close.read_text() == "first"


def test_a_host_that_cannot_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    lease = SiteFolder(tmp_path).lease("demo-gpu-1")
    with pytest.raises(LeaseError, match=r"did not start .exit code 1.*\n.*host.log"):
        lease_client.start(lease, demo_lease(lease.lease_id))


def test_control_side_loads_no_heavy_library() -> None:
    """Airflow parses what imports this."""
    code = (
        "import sys, headrace.clusters.lease_client, headrace.clusters.lease_records, "
        "headrace.clusters.lease_folders, headrace.clusters.local\n"
        "print([m for m in ('dask', 'distributed', 'torch', 'h5py', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def own_folder(tmp_path: Path) -> LeaseFolder:
    return LeaseFolder(tmp_path / "demo-1")


@pytest.fixture
def process(own_folder: LeaseFolder) -> Iterator[psutil.Process]:
    """A process of the lease that runs until it is told to end."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=mark(own_folder)) as child:
        yield psutil.Process(child.pid)


def test_a_process_with_the_mark_is_found(own_folder: LeaseFolder, process: psutil.Process) -> None:
    assert marked([own_folder]) == {str(own_folder.path.resolve()): [process]}


def test_the_guard_ends_what_a_killed_host_leaves(
    own_folder: LeaseFolder, process: psutil.Process
) -> None:
    """It holds nothing else of the host, as the lock of the lease."""
    code = (
        "import os, sys, filelock; from pathlib import Path; from headrace.files.layout import "
        "LeaseFolder; from headrace.clusters.host import Guard\n"
        "own_folder = LeaseFolder(Path(sys.argv[1])); lock = filelock.FileLock(own_folder.lock)\n"
        "lock.acquire(); guard = Guard(own_folder); print(guard._pid, flush=True)\n"
        "if sys.argv[2] == 'dismissed': guard.dismiss()\n"
        "os.kill(os.getpid(), 9)"
    )
    for how in ("dismissed", "killed"):
        command = [sys.executable, "-c", code, str(own_folder.path), how]
        guard = int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        with FileLock(own_folder.lock, timeout=0):
            wait_until(lambda pid=guard: not psutil.pid_exists(pid), 30, "the guard to end")
        has_ended = process.status() == psutil.STATUS_ZOMBIE
        assert has_ended == (how == "killed")


def test_a_process_that_just_ends_is_not_left_over(
    own_folder: LeaseFolder, process: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has taken its memory, command line included, and it is no zombie yet."""
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: [])
    assert marked([own_folder]) == {str(own_folder.path.resolve()): []}


@pytest.mark.parametrize(("keep_warm", "kept"), [(300.0, "300"), (0.0, "0")])
def test_processes_are_kept_for_leases_of_this_machine_alone(
    own_folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch, keep_warm: float, kept: str
) -> None:
    """Not for hosts of other backends, whose jobs inherit their environment."""
    asked: list[str] = []

    def fork(_modules: object, host: Child, **_: object) -> SimpleNamespace:
        asked.append(host.env[zygote.KEEP_WARM])
        own_folder.closed.touch()
        return SimpleNamespace()

    monkeypatch.setattr(zygote, "fork", fork)
    own_folder.path.mkdir()
    for backend in ("local", "slurm"):
        role = Role(backend=backend, keep_warm=keep_warm)
        lease_machines.launch(own_folder, lease_spec(own_folder, role))
    assert asked == [kept, "0"]


def test_a_gang_does_not_wait_for_a_node_whose_worker_has_ended(own_folder: LeaseFolder) -> None:
    """As one that the kernel killed for memory while it started."""
    node = SimpleNamespace(has_ended=True)
    cluster: Any = SimpleNamespace(
        scheduler=SimpleNamespace(workers={}), workers={"node-0": node}, folder=own_folder
    )
    role = Role(kind="gang", start_timeout=2.0)
    with pytest.raises(LeaseError, match=f"worker of node-0 ended.*\n  See {own_folder.log}"):
        asyncio.run(local_cluster._wait_for_nodes(cluster, role))
