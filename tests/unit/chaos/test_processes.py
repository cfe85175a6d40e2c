from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from chaos.campaign.processes import Processes, describe, role_of, shared_memory
from support.sleepers import sleeper
from support.waiting import wait_until

SERVER = "python -u -m headrace.processes.forking 30 "


@pytest.mark.parametrize(
    ("name", "command", "role"),
    [
        ("python", "python -c from headrace.cli.app import main", "command"),
        ("python", "python -m headrace.clusters.host /l/1 --detach", "host"),
        ("guard", "python -m headrace.clusters.host /l/1", "guard"),
        ("driver 1", f"{SERVER} headrace.steps.run", "driver"),
        ("run", f"{SERVER} headrace.steps.run", "server"),
        ("python", f"{SERVER} headrace.steps.model_process", "server"),
        ("rank 1", f"{SERVER} headrace.steps.model_process", "rank"),
        ("predictor", f"{SERVER} headrace.steps.model_process", "predictor"),
        ("local_cluster", f"{SERVER} headrace.clusters.local_cluster", "server"),
        ("worker node-0", f"{SERVER} headrace.clusters.local_cluster", "worker"),
        ("dask worker [tc", "dask worker [tcp://127.0.0.1:1]", "worker"),
        ("python", "python -c from multiprocessing.spawn import spawn_main", "worker"),
        ("python", "python -c from multiprocessing.resource_tracker import main", "tracker"),
        ("git", "git rev-parse HEAD", "other"),
    ],
)
def test_roles(name: str, command: str, role: str):
    assert role_of(name, command) == role


def test_processes_of_this_home_alone_are_found_and_ended(tmp_path: Path):
    processes = Processes(tmp_path / "mine")
    with (
        sleeper(tmp_path / "mine", "headrace.clusters.host") as mine,
        sleeper(tmp_path / "other", "headrace.clusters.host") as other,
    ):
        found = wait_until(processes.living, 30, "the process to be found")
        assert [(each.pid, role) for each, role in found.items()] == [(mine.pid, "host")]
        assert describe(found)[0].startswith(f"host {mine.pid} (")
        processes.kill()
        assert mine.wait(30) == -9
        assert other.poll() is None
        assert not processes.living()


def test_named_semaphores_are_shared_memory():
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name = Path("/dev/shm") / f"sem.{semaphore._semlock.name.removeprefix('/')}"
    assert name.exists()
    assert name in shared_memory([psutil.Process()])


def test_trackers_end_last_so_that_no_semaphore_stays(tmp_path: Path):
    code = (
        "import multiprocessing, time; s = multiprocessing.get_context('spawn').Semaphore(); "
        "print(flush=True); time.sleep(600)"
    )
    processes = Processes(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADRACE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        memory = shared_memory(processes.living())
        assert memory
        processes.kill()
    assert [path for path in memory if path.exists()] == []
