"""The local backend: this machine, one worker process for each node."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time

from headrace.batch.jobs import JOB_STARTED, JobView
from headrace.errors import LeaseError
from headrace.leases.backends import Cluster
from headrace.leases.marks import end_marked, mark
from headrace.leases.records import LeaseSpec
from headrace.storage.layout import LeaseFolder

_LAUNCH_TIMEOUT_S = 60.0
_HOST_TIMEOUT_S = 30.0
_POLL_S = 0.05


class LocalBackend:
    """Nodes are worker processes of this machine."""

    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        """Start the host process; it detaches itself and outlives the caller.

        Raises:
            LeaseError: It did not start.
        """
        start_host(folder, spec)

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Empty: nothing is submitted."""
        return ""

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Empty: there is no queue."""
        return ""

    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> Cluster:
        """Open the cluster; called inside the host process.

        Raises:
            LeaseError: Not all nodes of a gang were there in time.
        """
        # the control side uses this module too, and must not load Dask
        cluster: Cluster = await importlib.import_module("headrace.leases.cluster").open_local(
            folder, spec
        )
        return cluster

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """None: there is no queue."""
        return None

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """None: nobody else knows of these machines."""
        return None

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Empty: there is no queue."""
        return ""

    def kill_leftovers(self, folder: LeaseFolder) -> int:
        """End every process of this machine that carries the lease's mark."""
        return end_marked(folder)


def start_host(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Start the host process on this machine; it detaches itself and outlives the caller.

    Raises:
        LeaseError: It did not start.
    """
    command = [sys.executable, "-m", "headrace.leases.host", str(folder.path), "--detach"]
    with folder.log.open("ab") as log:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=host_environment(folder, spec),
            timeout=_LAUNCH_TIMEOUT_S,
            check=False,
        )
    if ended.returncode != 0:
        raise LeaseError(
            f"The host of lease {folder.lease_id} did not start (exit code {ended.returncode})",
            f"See {folder.log}.",
        )
    _wait_for_host(folder)


def _wait_for_host(folder: LeaseFolder) -> None:
    deadline = time.monotonic() + _HOST_TIMEOUT_S
    while not (folder.host.exists() or folder.closed.exists()):
        if time.monotonic() > deadline:
            raise LeaseError(
                f"The host of lease {folder.lease_id} did not report within {_HOST_TIMEOUT_S:g} s",
                f"See {folder.log}.",
            )
        time.sleep(_POLL_S)


def host_environment(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, str]:
    """Environment of the host and, through it, of drivers and workers.

    Args:
        folder: The lease; its mark goes into the environment.
        spec: Its `code` folders go in front of the module path.
    """
    path = [*spec.code, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, **mark(folder)}
    environment.pop(JOB_STARTED, None)  # this lease does not end with the job that it starts from
    environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
    return environment


def backend() -> LocalBackend:
    """The backend that the table of backends asks for."""
    return LocalBackend()
