"""Services beside the steps of real leases: on this machine, and in a container on a real Slurm."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role
from headrace.states import LeaseState
from support import container_image
from support.fleet_functions import page
from support.leases import START_TIMEOUT_S, opened, start, wait_for_state
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_WEB = (sys.executable, "-m", "http.server", "{port}", "--bind={host}", "--directory=/usr/share")


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[None]:
    """Ends the test's lease, also if the test fails."""
    yield
    lease_client.end(SiteFolder(tmp_path).lease("demo-1"))


def _service(*command: str, **more: Any) -> dict[str, Any]:
    return {"web-1": {"command": command, **more}}


def _log(folder: LeaseFolder) -> Path:
    return folder.path.parents[1] / "runs" / "demo" / "services" / "web-1.log"


def _processes(port: str) -> list[list[str]]:
    wanted = ["http.server", port]
    found = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    return [each for each in found if all(word in each for word in wanted)]


def test_steps_reach_a_service_that_ends_even_if_the_host_is_killed(
    tmp_path: Path, no_leftover_processes: None, ended: None
):
    folder = opened(tmp_path, Role(kind="gang", services=_service(*_WEB)))
    with Fleet.open(folder) as fleet:
        (node,) = fleet.nodes(1, START_TIMEOUT_S)
        address = fleet.call(node, os.getenv, "HEADRACE_SERVICE_WEB_1")
        assert b"Directory listing" in fleet.call(node, page, address)
    assert '"GET / HTTP' in _log(folder).read_text()
    port = address.partition(":")[2]
    assert len(_processes(port)) == 1
    host = read_record(folder.host, HostRecord)
    assert host is not None
    os.kill(host.process.pid, signal.SIGKILL)
    wait_until(lambda: not _processes(port), START_TIMEOUT_S, "the service's end")


def test_nodes_of_a_slurm_job_reach_a_service_in_a_container(
    tmp_path: Path, slurm: DevSlurm, no_leftover_processes: None, ended: None
):
    services = _service(*_WEB, container=container_image.made(tmp_path, "apptainer"))
    batch = {"interface": "lo", "poll": 0.2}
    role = Role(backend="slurm", kind="gang", nodes=2, lifetime=600, batch=batch, services=services)
    folder = opened(tmp_path, role)
    with Fleet.open(folder) as fleet:
        for node in fleet.nodes(2, START_TIMEOUT_S):
            address = fleet.call(node, os.getenv, "HEADRACE_SERVICE_WEB_1")
            assert b"Directory listing" in fleet.call(node, page, address)
    lease_client.end(folder)
    assert _processes(address.partition(":")[2]) == []


@pytest.mark.parametrize(
    ("command", "timeout_s", "reason"),
    [
        (
            ("sh", "-c", "echo no disk for {port} >&2; exit 3"),
            120,
            r"ended with exit code 3.*no disk for \d+",
        ),
        (
            ("sh", "-c", "echo recovers {port}; exec sleep 600"),
            8,
            r"accepts no connection after 8 s, at port \d+ of 127.0.0.1.*recovers \d+",
        ),
    ],
)
def test_a_service_that_does_not_start_fails_the_lease_with_the_end_of_its_log(
    command: tuple[str, ...],
    timeout_s: float,
    reason: str,
    tmp_path: Path,
    no_leftover_processes: None,
    ended: None,
):
    role = Role(kind="gang", services=_service(*command, start_timeout=timeout_s))
    _log(SiteFolder(tmp_path).lease("demo-1")).parent.mkdir(parents=True)
    _log(SiteFolder(tmp_path).lease("demo-1")).write_text("from before\n")
    folder = start(tmp_path, role)
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    why = LeaseFiles.read(folder).why_ended
    assert re.search(f"Service 'web-1' {reason}", why, re.DOTALL)
    assert str(_log(folder)) in why
    assert "from before" not in why
