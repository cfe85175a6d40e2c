"""Which processes count as a lease's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from filelock import FileLock

from headrace.clusters import lease_machines, local_cluster
from headrace.clusters.local import mark, marked
from headrace.errors import LeaseError
from headrace.files.layout import LeaseFolder
from headrace.processes import zygote
from headrace.processes.children import Child
from headrace.recipe.site import Role
from support.leases import lease_spec
from support.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    return LeaseFolder(tmp_path / "demo-1")


@pytest.fixture
def process(folder: LeaseFolder) -> Iterator[psutil.Process]:
    """A process of the lease that runs until it is told to end."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=mark(folder)) as child:
        yield psutil.Process(child.pid)


def test_a_process_with_the_mark_is_found(folder: LeaseFolder, process: psutil.Process) -> None:
    assert marked([folder]) == {str(folder.path.resolve()): [process]}


def test_the_guard_ends_what_a_killed_host_leaves(
    folder: LeaseFolder, process: psutil.Process
) -> None:
    """It holds nothing else of the host, as the lock of the lease."""
    code = (
        "import os, sys, filelock; from pathlib import Path; from headrace.files.layout import "
        "LeaseFolder; from headrace.clusters.host import Guard\n"
        "folder = LeaseFolder(Path(sys.argv[1])); lock = filelock.FileLock(folder.lock)\n"
        "lock.acquire(); guard = Guard(folder); print(guard._pid, flush=True)\n"
        "if sys.argv[2] == 'dismissed': guard.dismiss()\n"
        "os.kill(os.getpid(), 9)"
    )
    for how in ("dismissed", "killed"):
        command = [sys.executable, "-c", code, str(folder.path), how]
        guard = int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
        with FileLock(folder.lock, timeout=0):
            wait_until(lambda pid=guard: not psutil.pid_exists(pid), 30, "the guard to end")
        has_ended = process.status() == psutil.STATUS_ZOMBIE
        assert has_ended == (how == "killed")


def test_a_process_that_just_ends_is_not_left_over(
    folder: LeaseFolder, process: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has taken its memory, command line included, and it is no zombie yet."""
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: [])
    assert marked([folder]) == {str(folder.path.resolve()): []}


@pytest.mark.parametrize(("keep_warm", "kept"), [(300.0, "300"), (0.0, "0")])
def test_processes_are_kept_for_leases_of_this_machine_alone(
    folder: LeaseFolder, monkeypatch: pytest.MonkeyPatch, keep_warm: float, kept: str
) -> None:
    """Not for hosts of other backends, whose jobs inherit their environment."""
    asked: list[str] = []

    def fork(_modules: object, host: Child, **_: object) -> SimpleNamespace:
        asked.append(host.env[zygote.KEEP_WARM])
        folder.closed.touch()
        return SimpleNamespace()

    monkeypatch.setattr(zygote, "fork", fork)
    folder.path.mkdir()
    for backend in ("local", "slurm"):
        role = Role(backend=backend, keep_warm=keep_warm)
        lease_machines.launch(folder, lease_spec(folder, role))
    assert asked == [kept, "0"]


def test_a_gang_does_not_wait_for_a_node_whose_worker_has_ended(folder: LeaseFolder) -> None:
    """As one that the kernel killed for memory while it started."""
    node = SimpleNamespace(has_ended=True)
    cluster: Any = SimpleNamespace(
        scheduler=SimpleNamespace(workers={}), workers={"node-0": node}, folder=folder
    )
    role = Role(kind="gang", start_timeout=2.0)
    with pytest.raises(LeaseError, match=f"worker of node-0 ended.*\n  See {folder.log}"):
        asyncio.run(local_cluster._wait_for_nodes(cluster, role))
