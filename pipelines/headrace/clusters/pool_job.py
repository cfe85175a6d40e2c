"""A node of a pool as a job of dask-jobqueue: its stage, and the meaning of its end."""

from __future__ import annotations

import signal
import time
from itertools import takewhile
from typing import Any

import dask
from distributed.deploy.spec import ProcessInterface

from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.batch.queue_state import JobRecord
from headrace.clusters.lease_machines import NodeRequest
from headrace.clusters.lifetime import leaving_s
from headrace.clusters.pool_policy import STABLE_S, PoolNode, Stage
from headrace.recipe.site import Role

__all__ = ["SECTION", "JobQueueCluster", "PoolJob", "is_nodes_fault"]

_ON_SIGINT = signal.getsignal(signal.SIGINT)
from dask_jobqueue.core import Job, JobQueueCluster  # noqa: E402 - takes SIGINT over

signal.signal(signal.SIGINT, _ON_SIGINT)

SECTION = "headrace"
"""Section of Dask's configuration, instead of a user's own: sites set all of it."""

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


def is_nodes_fault(state: JobState, here_s: float | None) -> bool:
    """Whether the end of a node's job, `here_s` after its worker joined, is the node's fault.

    A cancelled or preempted job, or one out of time or memory, would end so on any node.
    """
    if state is JobState.NODE_FAILED:
        return True
    return state is JobState.FAILED and (here_s is None or here_s < STABLE_S)


class PoolJob(Job):  # type: ignore[misc]
    """A node of a pool: first a job, then a worker; times on one clock, in seconds.

    Attributes:
        record: Its job; None until it was submitted.
        job_status: State that the batch system reported last.
        asked_s: When it was submitted.
        retire_s: Time since its joining after which it is retired.
        stage: Its progress.
        since_s: When it came to its stage.
        joined_s: When its worker joined; None until then.
        leaving_s: When it was retired or cancelled; None if it was not.
        is_bound: Whether it does work that only this node can do.
        host: Its node in the batch system; empty as long as unknown.
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
        memory = spec.memory_per_node or 0
        options |= {"cores": spec.cpus_per_node, "memory": memory, "processes": 1}
        super().__init__(scheduler, name, job_name=spec.name, **options)
        self.shebang, *lines = script.splitlines()
        header = list(takewhile(lambda line: line.startswith("#"), lines))
        self.job_header = "\n".join(header)
        self._command_template = "\n".join(lines[len(header) :])
        self.request = request
        self.spec = spec
        self.record: JobRecord | None = None
        self.job_status = JobStatus(job_id="", state=JobState.PENDING)
        self.asked_s = 0.0
        self.retire_s = 0.0
        self.stage = Stage.QUEUED
        self.since_s = 0.0
        self.joined_s: float | None = None
        self.leaving_s: float | None = None
        self.is_bound = False
        self.host = ""

    async def start(self) -> None:
        """Record that it is wanted."""
        await ProcessInterface.start(self)

    async def close(self) -> None:
        """Record that it is wanted no more."""
        await ProcessInterface.close(self)

    def set_submitted(self, record: JobRecord, asked_s: float) -> None:
        """Record the submitted job."""
        self.record, self.job_id = record, record.job_id
        self.asked_s, self.since_s = asked_s, time.monotonic()
        life_s = self.request.time_limit_s
        # staggered, so that nodes started together are not replaced together
        share = 1 - _STAGGER * (self.request.serial * 0.618 % 1)
        self.retire_s = (life_s - leaving_s(life_s)) * share

    def set_status(self, status: JobStatus) -> None:
        """Record the state that the batch system reports."""
        self.job_status = status
        self.host = status.nodes[0] if status.nodes else self.host

    def set_worker(self, worker: Any, now_s: float) -> None:
        """Record the worker's state in the scheduler; None without a worker."""
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
        """Whether it can never start."""
        return self.job_status.never_starts and self.leaving_s is None

    @property
    def is_kept_from_nodes(self) -> bool:
        """Whether it waits because nodes are excluded, and the others are down or drained."""
        is_asked = bool(self.request.exclude) and self.leaving_s is None
        return is_asked and self.job_status.nodes_are_out

    def speaks_against_node(self, now_s: float) -> bool:
        """Whether what its job did, or did not do, is the node's fault."""
        if not self.job_status.state.is_final:
            return self.joined_s is None
        here_s = None if self.joined_s is None else now_s - self.joined_s
        return is_nodes_fault(self.job_status.state, here_s)

    def overdue(self, role: Role, now_s: float) -> str:
        """Return what it should have done by now; empty if nothing is wrong."""
        waited_s = now_s - self.since_s
        if self.leaving_s is not None:
            return "did not leave" if now_s - self.leaving_s > _LEAVE_S else ""
        if self.stage is not Stage.STARTING:
            return ""
        if self.joined_s is None:
            late = waited_s > role.start_timeout
            return f"started no worker within {role.start_timeout:g} s" if late else ""
        return f"lost its worker for {waited_s:.0f} s" if waited_s > _REJOIN_S else ""

    @property
    def is_taken(self) -> bool:
        """Whether its machine is about to be taken away."""
        return self.stage.is_here and self.job_status.is_taken

    def left_s(self, now_s: float) -> float:
        """Return the seconds after which it is retired."""
        if self.is_taken:
            return 0.0
        return self.retire_s - (0.0 if self.joined_s is None else now_s - self.joined_s)

    def node(self, now_s: float) -> PoolNode:
        """Return its state for decisions."""
        return PoolNode(
            number=self.request.number,
            stage=self.stage,
            since_s=self.since_s,
            is_leaving=self.leaving_s is not None,
            is_old=self.left_s(now_s) <= 0,
            is_bound=self.is_bound,
        )
