"""The ways to get machines: one narrow protocol, chosen from a table of names."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Protocol

from headrace.batch.jobs import JobView
from headrace.clusters.records import LeaseSpec
from headrace.errors import SiteError, nearest
from headrace.files.layout import LeaseFolder

_BATCH = ("slurm", "pbs", "sge", "lsf", "htcondor", "oar", "ssh")
_MODULES = {"local": "headrace.clusters.local", **dict.fromkeys(_BATCH, "headrace.clusters.queued")}


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
        """Look whether it can still have nodes; called a few times a second.

        Raises:
            HeadraceError: It cannot, and why.
        """

    async def close(self) -> None:
        """End all workers and the scheduler."""


class LeaseBackend(ABC):
    """What a backend must be able to do; where there is no queue, most of it is nothing."""

    @abstractmethod
    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        """Start the host process, which outlives the caller, or submit, once, the job that will.

        Raises:
            LeaseError: It did not start.
            JobRefusedError: The batch system refuses the job.
            QueueFullError: It is not the job's turn; nothing was submitted.
            BatchError: The batch system does not answer.
        """

    @abstractmethod
    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
        """Open the cluster; called inside the host process.

        Side effects: writes Dask's scheduler file, key and certificate into the lease's folder.

        Returns:
            The cluster: a gang with all its nodes, a pool ready to grow.

        Raises:
            LeaseError: Not all nodes of a gang were there in time.
        """

    @abstractmethod
    def kill_leftovers(self, folder: LeaseFolder) -> int:
        """End all processes and jobs of a lease, except the one that this runs in.

        Returns:
            How many were ended.

        Raises:
            BatchError: The batch system does not answer, or a job does not end.
        """

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """What `launch` would submit, as text; empty where there is no queue."""
        return ""

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Why the batch system would never take the lease's jobs, asked without submitting any.

        Returns:
            Its words; empty where it would take them, cannot be asked so, or there is no queue.
        """
        return ""

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the job stands that gives the machines; cheap, it may be called often.

        Returns:
            None where there is no queue, or no job was submitted.
        """
        return None

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the job of a lost lease ended, as the batch system knows it now.

        Returns:
            None when it knows nothing that the lease's own files do not tell.

        Raises:
            LeaseError: The batch system does not answer.
        """
        return None

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """The lease's job, also one that was submitted and never recorded; nothing is submitted.

        Returns:
            What the job is called, for users; empty when there is none.

        Raises:
            LeaseError: The batch system does not answer.
        """
        return ""


def backend(name: str) -> LeaseBackend:
    """The backend of that name.

    Raises:
        SiteError: There is none.
    """
    if name not in _MODULES:
        raise SiteError(f"There is no backend '{name}'", nearest(name, _MODULES))
    found: LeaseBackend = importlib.import_module(_MODULES[name]).backend()
    return found
