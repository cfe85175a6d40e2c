"""The local backend: this machine, one worker process for each node."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time

from headrace.batch.jobs import JOB_STARTED
from headrace.clusters.backends import LeaseBackend, OpenCluster
from headrace.clusters.guard import end_marked, mark
from headrace.clusters.records import LeaseSpec
from headrace.errors import LeaseError
from headrace.files.layout import LeaseFolder

_LAUNCH_TIMEOUT_S = 60.0
_HOST_TIMEOUT_S = 30.0
_POLL_S = 0.05


class _LocalBackend(LeaseBackend):
    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        start_host(folder, spec)

    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
        # the control side uses this module too, and must not load Dask
        cluster = importlib.import_module("headrace.clusters.cluster")
        opened: OpenCluster = await cluster.open_local(folder, spec)
        return opened

    def kill_leftovers(self, folder: LeaseFolder) -> int:
        return end_marked(folder)


def start_host(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Start the host process on this machine; it detaches itself and outlives the caller.

    Raises:
        LeaseError: It did not start, or does not report.
    """
    command = [sys.executable, "-m", "headrace.clusters.host", str(folder.path), "--detach"]
    with folder.log.open("ab") as log:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_host_environment(folder, spec),
            timeout=_LAUNCH_TIMEOUT_S,
            check=False,
        )
    see = f"See {folder.log}."
    if ended.returncode != 0:
        code = f"exit code {ended.returncode}"
        raise LeaseError(f"The host of lease {folder.lease_id} did not start ({code})", see)
    deadline = time.monotonic() + _HOST_TIMEOUT_S
    while not (folder.host.exists() or folder.closed.exists()):
        if time.monotonic() > deadline:
            what = f"did not report within {_HOST_TIMEOUT_S:g} s"
            raise LeaseError(f"The host of lease {folder.lease_id} {what}", see)
        time.sleep(_POLL_S)


def _host_environment(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, str]:
    """Environment of the host and, through it, of drivers and workers."""
    path = [*spec.code, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, **mark(folder)}
    environment.pop(JOB_STARTED, None)  # this lease does not end with the job that it starts from
    environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return environment


def backend() -> LeaseBackend:
    """The backend that the table of backends asks for."""
    return _LocalBackend()
