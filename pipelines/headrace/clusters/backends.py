"""Ways to get machines for a lease: one narrow interface, chosen by the backend's name."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Protocol

from headrace.batch.job_records import JobView
from headrace.clusters.lease_records import LeaseSpec
from headrace.files.layout import LeaseFolder
from headrace.recipe.backend import backend_of


class OpenCluster(Protocol):
    """An open Dask cluster, as used by the host process."""

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""

    @property
    def dashboard_url(self) -> str:
        """Link of the dashboard: it opens only on the host's machine, or by an SSH tunnel."""

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Ids by which users know the machines."""

    def check(self) -> None:
        """Raise if the cluster can have no more nodes; called a few times a second."""

    async def close(self) -> None:
        """End all workers and the scheduler."""


class LeaseLauncher(ABC):
    """Starts and ends the machines of a lease; without a queue, most methods do nothing.

    Methods that ask a batch system raise BatchError if it does not answer.
    """

    opens_at_once = False
    """Whether machines are ready within seconds and cost nothing while idle."""

    @abstractmethod
    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        """Start the host process, which outlives the caller, or submit its job once.

        It raises what `client.start` raises.
        """

    @abstractmethod
    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
        """Open, in the host process, a gang with all its nodes, or a pool ready to grow.

        Side effects: writes Dask's scheduler file, key and certificate into the lease's folder.

        Raises:
            LeaseError: Not all nodes of a gang joined in time.
        """

    @abstractmethod
    def kill_leftovers(self, folder: LeaseFolder) -> int:
        """End all processes and jobs of a lease except this one; return their number.

        Raises:
            BatchError: The batch system does not answer, or a job does not end.
        """

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Return what `launch` would submit, as text; empty if there is no queue."""
        return ""

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Return why the batch system would never accept the lease's jobs; empty if unknown."""
        return ""

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """Return the state of the job that gives the machines, or None; may be called often."""
        return None

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """Return how the job of a lost lease ended; None if its own files explain as much."""
        return None

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Return the lease's job as users know it, even if never recorded; empty for none."""
        return ""


def launcher_for(name: str) -> LeaseLauncher:
    """Return the launcher of a backend: on this machine, or as jobs of a batch system.

    Raises:
        SiteError: The backend does not exist.
    """
    module = "local" if backend_of(name).is_here else "batch_launcher"
    found: LeaseLauncher = importlib.import_module(f"headrace.clusters.{module}").LAUNCHER
    return found
