"""The ways to get machines: one narrow protocol, chosen from a table of names."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Protocol

from headrace.batch.job_records import JobView
from headrace.clusters.lease_records import LeaseSpec
from headrace.files.layout import LeaseFolder
from headrace.recipe.backend import backend_of


class OpenCluster(Protocol):
    """An open Dask cluster, as the host process sees it."""

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler."""

    @property
    def dashboard_url(self) -> str:
        """Link of the dashboard: it opens on the host's machine only, or by an SSH tunnel."""

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Ids that the outside world knows the machines by."""

    def check(self) -> None:
        """Raise why it can have no more nodes, if so; called a few times a second."""

    async def close(self) -> None:
        """End all workers and the scheduler."""


class LeaseBackend(ABC):
    """What a backend must be able to do; where there is no queue, most of it is nothing.

    What asks a batch system that does not answer raises BatchError.
    """

    opens_at_once = False
    """Whether machines are there within seconds and cost nothing while they idle."""

    @abstractmethod
    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        """Start the host process, which outlives the caller, or submit, once, the job that will.

        It raises what `client.start` raises.
        """

    @abstractmethod
    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
        """Open, in the host process, a gang with all its nodes, or a pool ready to grow.

        Side effects: writes Dask's scheduler file, key and certificate into the lease's folder.

        Raises:
            LeaseError: Not all nodes of a gang were there in time.
        """

    @abstractmethod
    def kill_leftovers(self, folder: LeaseFolder) -> int:
        """End all processes and jobs of a lease but the one that this runs in; gives how many.

        Raises:
            BatchError: The batch system does not answer, or a job does not end.
        """

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """What `launch` would submit, as text; empty where there is no queue."""
        return ""

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Why the batch system would never take the lease's jobs; empty where nothing says so."""
        return ""

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the job stands that gives the machines, if there is one; it may be called often."""
        return None

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the job of a lost lease ended; None when its own files tell as much."""
        return None

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """What users know the lease's job by, also one that was never recorded; empty for none."""
        return ""


def backend(name: str) -> LeaseBackend:
    """How leases of that backend come to be: on this machine, or as jobs of a batch system.

    Raises:
        SiteError: There is no backend of that name.
    """
    module = "local" if backend_of(name).is_here else "queued"
    found: LeaseBackend = importlib.import_module(f"headrace.clusters.{module}").BACKEND
    return found
