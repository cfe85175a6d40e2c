"""The launcher of batch systems: a gang is one job of N nodes, a pool one job per node."""

from __future__ import annotations

import importlib
import logging
import os
from functools import partial

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
from headrace.batch.registry import system_of
from headrace.batch.submission_gate import SubmissionGate, recovered
from headrace.batch.system import BatchSystem
from headrace.clusters.backends import LeaseLauncher, OpenCluster
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


class _BatchLauncher(LeaseLauncher):
    """Gets machines as jobs of the batch system of the lease's role.

    The host of a pool may run on the control machine: then no job is submitted before there is
    work.
    """

    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        if _has_host_here(spec):
            start_host(folder, spec)
            return
        gate = _gate(folder, spec)
        try:
            gate.submit(_job(folder, spec), folder.job)
        except JobRefusedError as error:
            if not spec.exclude:
                raise
            logger.warning("%s; requesting again with all nodes", error.what)
            gate.submit(_job(folder, spec.model_copy(update={"exclude": ()})), folder.job)

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        system = system_of(spec.role)
        return "\n".join(system.preview(job) for job in _all_jobs(folder, spec))

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        system = system_of(spec.role)
        found = (system.refusal(job) for job in _all_jobs(folder, spec))
        return next((f"{system.name} refuses them: {each}" for each in found if each), "")

    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> OpenCluster:
        # the control side uses this module too, and must not load Dask
        own_id = os.environ.get(system_of(spec.role).job_variable, "")
        module = importlib.import_module(f"headrace.clusters.{spec.role.kind}")
        opened: OpenCluster
        if spec.role.kind == "gang":
            opened = await module.open_gang(folder, spec, job_id=own_id)
        else:
            job_ids = () if _has_host_here(spec) else (own_id,)
            new_job = partial(_node_job, folder, spec)
            opened = await module.open_pool(folder, spec, _gate(folder, spec), new_job, job_ids)
        return opened

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        record = read_record(folder.job, JobRecord)
        if record is None:
            return None
        system = system_of(spec.role)
        found = job_status(system, folder.path.parent, record, spec.role.batch.poll)
        return overdue(found, folder, spec, system.name) or view_of(found, system.name)

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
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

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        system = system_of(spec.role)
        record = recovered(system, job_name(folder), folder.job)
        return "" if record is None else f"{system.name} job {record.job_id}"

    def kill_leftovers(self, folder: LeaseFolder) -> int:
        spec = read_record(folder.spec, LeaseSpec)
        if spec is None:
            return end_marked(folder)
        system = system_of(spec.role)
        num_ended = end_node_jobs(system, folder, _LEAVING_S if is_there(folder.close) else 0.0)
        is_marked = mark(folder).items() <= os.environ.items()
        if system.job_variable in os.environ and is_marked and not _has_host_here(spec):
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
    """Return the lease's job, and that of a pool's first node."""
    jobs = [] if _has_host_here(spec) else [_job(folder, spec)]
    if spec.role.kind == "pool":
        life_s = spec.role.node_lifetime or spec.role.lifetime_s
        first = NodeRequest(serial=1, number=0, time_limit_s=life_s, exclude=spec.exclude)
        jobs.append(_node_job(folder, spec, first))
    return jobs


def _node_job(folder: LeaseFolder, spec: LeaseSpec, request: NodeRequest) -> JobSpec:
    # nodes to exclude are part of the request, which may drop them
    gang = job_spec(folder, spec.model_copy(update={"exclude": ()}), _python_path())
    return node_job(gang, folder, request)


def _python_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def _has_host_here(spec: LeaseSpec) -> bool:
    return spec.role.kind == "pool" and spec.role.host == "control"


def _gate(folder: LeaseFolder, spec: LeaseSpec) -> SubmissionGate:
    return SubmissionGate(system_of(spec.role), folder.path.parent, spec.role.batch)


LAUNCHER = _BatchLauncher()
