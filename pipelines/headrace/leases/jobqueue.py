"""The nodes of a pool as dask-jobqueue knows them: a job first, a worker later.

SpecCluster starts and closes jobs under its lock, where no queue may be waited for. So `start` and
`close` only note what is wanted; the loop of the pool submits, polls and cancels.
"""

from __future__ import annotations

import signal
import time
from itertools import takewhile
from typing import Any

import dask
from distributed.deploy.spec import ProcessInterface

from headrace.batch.jobs import JobSpec, JobState, JobStatus
from headrace.batch.submitting import JobRecord
from headrace.leases.avoidance import is_nodes_fault
from headrace.leases.lifetime import leaving_s
from headrace.leases.pool_jobs import NodeRequest
from headrace.leases.scaling import PoolNode, Stage
from headrace.recipe.site import Role

_ON_SIGINT = signal.getsignal(signal.SIGINT)
from dask_jobqueue.core import Job  # noqa: E402 - takes SIGINT over when it is imported

signal.signal(signal.SIGINT, _ON_SIGINT)

SECTION = "headrace"
"""Section of Dask's configuration, in place of a user's own: sites say all of it."""

_UNSET = (
    "python", "name", "processes", "interface", "death-timeout", "local-directory", "extra",
    "worker-command", "env-extra", "job-extra", "log-directory", "shebang",
    "shared-temp-directory",
)  # fmt: skip
_DEFAULTS = dict.fromkeys(_UNSET) | {"worker-extra-args": [], "job-script-prologue": []}
dask.config.update_defaults({"jobqueue": {SECTION: _DEFAULTS}})

_STAGGER = 0.1
_REJOIN_S = 20.0
_LEAVE_S = 30.0


class PoolJob(Job):  # type: ignore[misc]
    """A node of a pool; times on one clock, in seconds.

    Args:
        scheduler: Address of the pool's scheduler.
        name: Name of its worker.
        request: What was asked for.
        spec: Its job.
        script: The job's script, as the batch system gets it.
        **options: Those of dask-jobqueue's `Job`.
    """

    config_name = SECTION

    def __init__(
        self,
        scheduler: str | None = None,
        name: str | None = None,
        *,
        request: NodeRequest,
        spec: JobSpec,
        script: str,
        **options: Any,
    ) -> None:
        memory = spec.memory_bytes or 0
        options |= {"cores": spec.cpus_per_node, "memory": memory, "processes": 1}
        super().__init__(scheduler, name, job_name=spec.name, **options)
        self.shebang, *lines = script.splitlines()
        header = list(takewhile(lambda line: line.startswith("#"), lines))
        self.job_header = "\n".join(header)
        self._command_template = "\n".join(lines[len(header) :])
        self.request = request
        self.spec = spec
        self.record: JobRecord | None = None
        """What the batch system knows it by; None until it was submitted."""
        self.job_status = JobStatus(job_id="", state=JobState.PENDING)
        """What the batch system told last."""
        self.asked_s = 0.0
        """When it was submitted."""
        self.retire_s = 0.0
        """It is sent away when it has been there for so long."""
        self.stage = Stage.QUEUED
        """How far it has come."""
        self.since_s = 0.0
        """When it came to its stage."""
        self.joined_s: float | None = None
        """When its worker joined; None until then."""
        self.leaving_s: float | None = None
        """When it was sent away; None when it was not."""
        self.is_bound = False
        """Whether it does work that only this node can do."""
        self.host = ""
        """Its node, as the batch system knows it; empty as long as that is not known."""

    async def start(self) -> None:
        """Note that it is wanted."""
        await ProcessInterface.start(self)

    async def close(self) -> None:
        """Note that it is wanted no more."""
        await ProcessInterface.close(self)

    def submitted(self, record: JobRecord, asked_s: float) -> None:
        """Take up that the batch system has its job."""
        self.record, self.job_id = record, record.job_id
        self.asked_s, self.since_s = asked_s, time.monotonic()
        life_s = self.request.time_limit_s
        # staggered, so that nodes started together are not replaced together
        share = 1 - _STAGGER * (self.request.serial * 0.618 % 1)
        self.retire_s = (life_s - leaving_s(life_s)) * share

    def take(self, status: JobStatus) -> None:
        """Take up what the batch system tells."""
        self.job_status = status
        self.host = status.nodes[0] if status.nodes else self.host

    def see(self, worker: Any, now_s: float) -> None:
        """Take up what the scheduler tells."""
        stage = Stage.STARTING
        if worker is not None:
            stage = Stage.BUSY if worker.processing else Stage.IDLE
            self.joined_s = self.joined_s or now_s
            self.is_bound = any(task.worker_restrictions for task in worker.processing)
        elif self.joined_s is None and self.job_status.state is JobState.PENDING:
            stage = Stage.QUEUED
        if stage is not self.stage:
            self.stage, self.since_s = stage, now_s

    @property
    def never_starts(self) -> bool:
        """Whether it waits for what waiting does not bring."""
        return self.job_status.never_starts and self.leaving_s is None

    @property
    def is_kept_from_nodes(self) -> bool:
        """Whether it waits since it must not get some nodes, and the others are down or drained."""
        is_asked = bool(self.request.exclude) and self.leaving_s is None
        return is_asked and self.job_status.nodes_are_out

    def speaks_against_node(self, now_s: float) -> bool:
        """Whether what its job did, or did not do, is a fault of the node."""
        if not self.job_status.state.is_final:
            return self.joined_s is None
        here_s = None if self.joined_s is None else now_s - self.joined_s
        return is_nodes_fault(self.job_status.state, here_s)

    def node(self, now_s: float) -> PoolNode:
        """What decisions need to know."""
        return PoolNode(
            number=self.request.number,
            stage=self.stage,
            since_s=self.since_s,
            is_leaving=self.leaving_s is not None,
            is_old=self.joined_s is not None and now_s - self.joined_s > self.retire_s,
            is_bound=self.is_bound,
        )

    def overdue(self, role: Role, now_s: float) -> str:
        """What it should have done by now and has not; empty when nothing is wrong."""
        waited_s = now_s - self.since_s
        if self.leaving_s is not None:
            return "did not leave" if now_s - self.leaving_s > _LEAVE_S else ""
        if self.stage is not Stage.STARTING:
            return ""
        if self.joined_s is None:
            late = waited_s > role.start_timeout
            return f"started no worker within {role.start_timeout:g} s" if late else ""
        return f"lost its worker for {waited_s:.0f} s" if waited_s > _REJOIN_S else ""
