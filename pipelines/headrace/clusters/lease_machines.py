"""How a lease gets and ends its machines, for the control side and the lease's host; no Dask.

Processes of this machine, or jobs of a batch system: a gang is one job of all nodes, a pool one
job per node. Functions that ask a batch system raise BatchError if it does not answer.
"""

from __future__ import annotations

import logging
import os

from headrace.batch.job_records import (
    JobSpec,
    JobState,
    JobStatus,
    JobView,
    end_of,
    overdue_view,
    put_back,
    put_back_view,
    view_of,
    with_log,
)
from headrace.batch.queue_state import JobRecord, current_status, final_status, job_status
from headrace.batch.submission_gate import SubmissionGate, recovered
from headrace.batch.system import BatchSystem, system_of
from headrace.clusters.lease_jobs import (
    NodeRequest,
    end_job,
    end_node_jobs,
    host_job,
    job_spec,
    node_job,
    symptom_of,
)
from headrace.clusters.lease_records import LeaseSpec, PoolRecord, job_name
from headrace.clusters.local import end_marked, mark, start_host
from headrace.errors import BatchError, JobRefusedError
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder

logger = logging.getLogger(__name__)

_LEAVING_S = 5.0
_ENDING_S = 10.0
_LOG_BYTES = 65_536


def launch(folder: LeaseFolder, spec: LeaseSpec) -> None:
    """Start the host process, which outlives the caller, or submit its job once.

    The host of a pool may run on the control machine: then no job is submitted before there is
    work. Errors as of `lease_client.start`.
    """
    if has_host_here(spec):
        start_host(folder, spec, spec.role.keep_warm if spec.role.is_here else 0.0)
        return
    to_queue = gate(folder, spec)
    try:
        to_queue.submit(_job(folder, spec), folder.job)
    except JobRefusedError as error:
        if not spec.exclude:
            raise
        logger.warning("%s; requesting again with all nodes", error.what)
        to_queue.submit(_job(folder, spec.model_copy(update={"exclude": ()})), folder.job)


def preview(folder: LeaseFolder, spec: LeaseSpec) -> str:
    """Return what `launch` would submit, as text; empty without a batch system."""
    jobs = _all_jobs(folder, spec)
    return "\n".join(map(system_of(spec.role).preview, jobs)) if jobs else ""


def refusal(folder: LeaseFolder, spec: LeaseSpec) -> str:
    """Return why the batch system would never accept the lease's jobs; empty if unknown."""
    for job in _all_jobs(folder, spec):
        system = system_of(spec.role)
        if found := system.refusal(job):
            return f"{system.name} refuses them: {found}"
    return ""


def job_of(folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
    """Return the state of the job that gives the machines, or None; may be called often."""
    record = read_record(folder.job, JobRecord)
    if record is None:
        return None
    system = system_of(spec.role)
    found = job_status(system, folder.path.parent, record, spec.role.batch.poll)
    return overdue(found, folder, spec, system.name) or view_of(found, system.name)


def cause(folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
    """Return how the job of a lost lease ended; None if its own files explain as much."""
    pool = read_record(folder.pool, PoolRecord)
    if pool is not None and pool.failure is not None:
        return pool.failure
    record = read_record(folder.job, JobRecord)
    if record is None:
        return None
    system = system_of(spec.role)
    known = job_status(system, folder.path.parent, record, 0.0)
    late = overdue(known, folder, spec, system.name)
    return late or _ended(system, record, folder)


def find_job(folder: LeaseFolder, spec: LeaseSpec) -> str:
    """Return the lease's job as users know it, even if never recorded; empty for none."""
    if spec.role.is_here:
        return ""
    system = system_of(spec.role)
    record = recovered(system, job_name(folder), folder.job)
    return "" if record is None else f"{system.name} job {record.job_id}"


def end_leftovers(folder: LeaseFolder, spec: LeaseSpec) -> int:
    """End all processes and jobs of a lease except this one; return their number.

    Raises:
        BatchError: The batch system does not answer, or a job does not end.
    """
    if spec.role.is_here:
        return end_marked(folder)
    system = system_of(spec.role)
    num_ended = end_node_jobs(system, folder, _LEAVING_S if is_there(folder.close) else 0.0)
    is_marked = mark(folder).items() <= os.environ.items()
    if system.job_variable in os.environ and is_marked and not has_host_here(spec):
        return num_ended  # the host's own job ends with it
    # a job whose host has written `closed` gets a moment to end by itself
    num_ended += end_job(system, folder, _LEAVING_S if is_there(folder.closed) else 0.0)
    return num_ended + end_marked(folder)


def overdue(found: JobStatus, folder: LeaseFolder, spec: LeaseSpec, system: str) -> JobView | None:
    """Return the view of a running job whose host is overdue; None if it is not."""
    timeout_s = spec.role.start_timeout + spec.lost_after_s
    since = found.running_since
    if is_there(folder.host) or since is None or found.seen_at - since < timeout_s:
        return None
    return overdue_view(found, system, timeout_s)


def _ended(system: BatchSystem, record: JobRecord, folder: LeaseFolder) -> JobView | None:
    """Return how the job ended, from queue, accounting and log; None if its end is not reported."""
    found = _with_accounting(system, current_status(system, record))
    if put_back(found, has_started=is_there(folder.host)):
        return put_back_view(found, system.name)
    if not found.state.is_final:
        ended = final_status(system, record, _ENDING_S, or_never=True)
        if ended is None:
            return None
        found = _with_accounting(system, ended)
    if found.state in (JobState.COMPLETED, JobState.UNKNOWN):
        return None
    view = view_of(with_log(found, end_of(folder.log, _LOG_BYTES)), system.name)
    symptom = symptom_of(folder)
    if symptom is None or found.state is not JobState.FAILED:
        return view
    return view.model_copy(update={"why": f"{view.why}: {symptom.words}"})


def _with_accounting(system: BatchSystem, found: JobStatus) -> JobStatus:
    """Add what only the accounting reports, if there is any."""
    if found.is_from_books:
        return found
    try:
        ended = system.accounting([found.job_id]).get(found.job_id)
    except BatchError as error:
        logger.info("%s", error.what)
        return found
    if ended is None:
        return found
    failed, reason = ended.failed_nodes or found.failed_nodes, found.reason or ended.reason
    changes = {"failed_nodes": failed, "earlier": ended.earlier, "reason": reason}
    return found.model_copy(update=changes)


def _job(folder: LeaseFolder, spec: LeaseSpec) -> JobSpec:
    gang = job_spec(folder, spec, _python_path())
    return host_job(gang, spec.role) if spec.role.kind == "pool" else gang


def _all_jobs(folder: LeaseFolder, spec: LeaseSpec) -> list[JobSpec]:
    """Return the lease's job, and that of a pool's first node; empty on this machine."""
    if spec.role.is_here:
        return []
    jobs = [] if has_host_here(spec) else [_job(folder, spec)]
    if spec.role.kind == "pool":
        life_s = spec.role.node_lifetime or spec.role.lifetime_s
        first = NodeRequest(serial=1, number=0, time_limit_s=life_s, exclude=spec.exclude)
        jobs.append(job_of_node(folder, spec, first))
    return jobs


def job_of_node(folder: LeaseFolder, spec: LeaseSpec, request: NodeRequest) -> JobSpec:
    """Return the job of a pool's node."""
    # nodes to exclude are part of the request, which may drop them
    gang = job_spec(folder, spec.model_copy(update={"exclude": ()}), _python_path())
    return node_job(gang, folder, request)


def _python_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def has_host_here(spec: LeaseSpec) -> bool:
    """Whether the lease's host runs on the control machine."""
    return spec.role.is_here or (spec.role.kind == "pool" and spec.role.host == "control")


def gate(folder: LeaseFolder, spec: LeaseSpec) -> SubmissionGate:
    """Return the gate of the queue of a lease's role."""
    return SubmissionGate(system_of(spec.role), folder.path.parent, spec.role.batch)
