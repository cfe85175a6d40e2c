"""What users see of the jobs of a pool; pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.batch.jobs import view_of, waits_for
from headrace.leases.jobqueue import PoolJob
from headrace.leases.records import NodeJob
from headrace.leases.scaling import Stage


def node_jobs(members: Sequence[PoolJob], system: str) -> tuple[NodeJob, ...]:
    """The jobs of a pool for the user, in order of their nodes.

    Args:
        members: Nodes whose jobs have not ended.
        system: Name of the batch system.
    """
    return tuple(
        NodeJob(
            node=str(member.name),
            job_id=member.job_id,
            stage="leaving" if member.leaving_s is not None else member.stage.value,
            why=view_of(member.job_status, system).why,
        )
        for member in sorted(members, key=lambda each: each.request.number)
    )


def lack(
    members: Sequence[PoolJob], wanted: int, system: str, trouble: str, avoided: Sequence[str]
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
        details = waits_for(queued[0].job_status, system)
        what = f"{len(queued)} pending{f': {details}' if details else ''}"
    without = f" (without {', '.join(avoided)}, where jobs failed)" if avoided else ""
    return f"{num_here} of {wanted} nodes; {what}{without}"
