"""What users are told of a pool: its jobs, and why it has fewer nodes than work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.batch.jobs import view_of, waits_for
from headrace.clusters.records import PoolJobView
from headrace.clusters.scaling import Stage

if TYPE_CHECKING:
    from headrace.clusters.pool import PoolJob


def view(job: PoolJob, system: str) -> PoolJobView:
    """How a node's job stands; `system` is the name of the batch system."""
    return PoolJobView(
        node=str(job.name),
        job_id=job.job_id,
        stage="leaving" if job.leaving_s is not None else job.stage.value,
        why=view_of(job.job_status, system).why,
    )


def lack(
    jobs: Sequence[PoolJob], wanted: int, *, trouble: str, avoided: Sequence[str], system: str
) -> str:
    """Why there are fewer nodes than work, as in `2 of 4 nodes; 2 pending: Resources`.

    Args:
        jobs: Those that have not ended.
        wanted: Nodes that there is work for.
        trouble: Why no job waits in the queue; empty when nothing is wrong.
        avoided: Nodes that are left out.
        system: Name of the batch system.
    """
    num_here = sum(1 for job in jobs if job.stage.is_here)
    queued = [job for job in jobs if job.stage is Stage.QUEUED]
    if num_here >= wanted or not (queued or trouble):
        return ""
    what = trouble
    if queued:
        details = waits_for(queued[0].job_status, system)
        what = f"{len(queued)} pending{f': {details}' if details else ''}"
    without = f" (without {', '.join(avoided)}, where jobs failed)" if avoided else ""
    return f"{num_here} of {wanted} nodes; {what}{without}"
