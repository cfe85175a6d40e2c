"""The nodes of a pool as its host follows them: a job first, a worker later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.leases.avoidance import is_nodes_fault
from headrace.leases.batch.jobs import JobSight, JobState, view_of, waits_for
from headrace.leases.pool_jobs import PoolJob
from headrace.leases.records import NodeJob
from headrace.leases.scaling import PoolNode, Stage
from headrace.recipe.site import Role

_REJOIN_S = 20.0
_LEAVE_S = 30.0


@dataclass
class Member:
    """A node's job, and its worker as the scheduler knows it; times on one clock, in seconds."""

    job: PoolJob
    """Its job."""
    sight: JobSight
    """What the batch system told last."""
    asked_s: float
    """When the job was submitted."""
    retire_s: float
    """It is sent away when it has been there for so long."""
    since_s: float
    """When it came to its stage."""
    stage: Stage = Stage.QUEUED
    """How far it has come."""
    joined_s: float | None = None
    """When its worker joined; None until then."""
    leaving_s: float | None = None
    """When it was sent away; None when it was not."""
    is_bound: bool = False
    """Whether it does work that only this node can do."""
    host: str = ""
    """Its node, as the batch system knows it; empty as long as that is not known."""

    @property
    def name(self) -> str:
        """Name of its worker."""
        return f"node-{self.job.number}"

    def take(self, sight: JobSight) -> None:
        """Take up what the batch system tells."""
        self.sight = sight
        self.host = sight.nodes[0] if sight.nodes else self.host

    def see(self, worker: Any, now_s: float) -> None:
        """Take up what the scheduler tells."""
        stage = Stage.STARTING
        if worker is not None:
            stage = Stage.BUSY if worker.processing else Stage.IDLE
            self.joined_s = self.joined_s or now_s
            self.is_bound = any(task.worker_restrictions for task in worker.processing)
        elif self.joined_s is None and self.sight.state is JobState.PENDING:
            stage = Stage.QUEUED
        if stage is not self.stage:
            self.stage, self.since_s = stage, now_s

    @property
    def is_vain(self) -> bool:
        """Whether it waits for what waiting does not bring."""
        return self.sight.never_starts and self.leaving_s is None

    @property
    def is_kept_from_nodes(self) -> bool:
        """Whether it waits since it must not get some nodes, and the others are down or drained."""
        is_asked = bool(self.job.exclude) and self.leaving_s is None
        return is_asked and self.sight.nodes_are_out

    def speaks_against_node(self, now_s: float) -> bool:
        """Whether what its job did, or did not do, is a fault of the node."""
        if not self.sight.state.is_final:
            return self.joined_s is None
        here_s = None if self.joined_s is None else now_s - self.joined_s
        return is_nodes_fault(self.sight.state, here_s)

    def node(self, now_s: float) -> PoolNode:
        """What decisions need to know."""
        return PoolNode(
            number=self.job.number,
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


def node_jobs(members: Sequence[Member], system: str) -> tuple[NodeJob, ...]:
    """The jobs of a pool for the user, in order of their nodes.

    Args:
        members: Nodes whose jobs have not ended.
        system: Name of the batch system.
    """
    return tuple(
        NodeJob(
            node=member.name,
            job_id=member.job.record.job_id,
            stage="leaving" if member.leaving_s is not None else member.stage.value,
            why=view_of(member.sight, system).why,
        )
        for member in sorted(members, key=lambda each: each.job.number)
    )


def lack(
    members: Sequence[Member], wanted: int, system: str, trouble: str, avoided: Sequence[str]
) -> str:
    """Why a pool has fewer nodes than it has work for; empty when it has not.

    Such as `2 of 4 nodes; 2 pending: Resources, expected 14:05 CET`.

    Args:
        members: Nodes whose jobs have not ended.
        wanted: Nodes it has work for.
        system: Name of the batch system.
        trouble: Why no job waits in the queue; empty when nothing is wrong.
        avoided: Nodes that it must not get.
    """
    num_here = sum(1 for member in members if member.stage.is_here)
    queued = [member for member in members if member.stage is Stage.QUEUED]
    if num_here >= wanted or not (queued or trouble):
        return ""
    what = trouble
    if queued:
        details = waits_for(queued[0].sight, system)
        what = f"{len(queued)} pending{f': {details}' if details else ''}"
    without = f" (without {', '.join(avoided)}, where jobs failed)" if avoided else ""
    return f"{num_here} of {wanted} nodes; {what}{without}"
