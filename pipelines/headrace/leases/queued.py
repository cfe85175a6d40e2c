"""The backend of batch systems: a gang is one job of N nodes, a pool one job for each node."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
from functools import partial

from headrace.batch.jobs import (
    JobSpec,
    JobState,
    JobView,
    end_of,
    put_back,
    put_back_view,
    view_of,
    with_log,
)
from headrace.batch.queue_snapshot import final_status, job_status, look
from headrace.batch.submission_gate import SubmissionGate
from headrace.batch.submitting import JobRecord, intent_of, recovered
from headrace.batch.system import BatchSystem
from headrace.batch.systems import system_of
from headrace.errors import BatchError, JobRefusedError
from headrace.leases.backends import Cluster
from headrace.leases.job_end import overdue, with_books
from headrace.leases.local import start_host
from headrace.leases.marks import end_marked, mark
from headrace.leases.pool_jobs import NodeRequest, Queue, end_jobs, host_job, node_job
from headrace.leases.records import LeaseSpec, PoolRecord
from headrace.leases.symptoms import symptom_of
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)

_LEAVING_S = 5.0
_CANCEL_TIMEOUT_S = 30.0
_ENDING_S = 10.0
_LOG_BYTES = 65_536


class BatchBackend:
    """Machines are jobs of the batch system that the lease's role names."""

    def launch(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        """Submit the job, once; its host reports when the batch system has started it.

        The host of a pool may run here instead: then no job is submitted before there is work.

        Raises:
            JobRefusedError: The batch system refuses the job.
            QueueFullError: It is not the job's turn; nothing was submitted.
            BatchError: The batch system does not answer.
            LeaseError: The host of a pool did not start.
        """
        if _has_host_here(spec):
            start_host(folder, spec)
            return
        gate = _gate(folder, spec)
        try:
            gate.submit(_job(folder, spec), folder.job)
        except JobRefusedError as error:
            if not spec.exclude:
                raise
            logger.warning("%s; asking again with all nodes", error.what)
            gate.submit(_job(folder, spec.model_copy(update={"exclude": ()})), folder.job)

    def preview(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """The scripts of the lease's job and of a pool's nodes; nothing is asked of the queue."""
        system = system_of(spec.role)
        return "\n".join(system.render(job) for job in _all_jobs(folder, spec))

    def refusal(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """Why the batch system would never take the lease's jobs; see `Backend.refusal`."""
        system = system_of(spec.role)
        told = (system.refusal(job) for job in _all_jobs(folder, spec))
        return next((f"{system.name} refuses them: {each}" for each in told if each), "")

    async def open_cluster(self, folder: LeaseFolder, spec: LeaseSpec) -> Cluster:
        """Open the cluster; called inside the host process, the first task of a gang's job.

        Raises:
            LeaseError: Not all nodes of the gang were there in time.
        """
        # the control side uses this module too, and must not load Dask
        own_id = os.environ.get(system_of(spec.role).job_variable, "")
        cluster: Cluster
        if spec.role.kind == "gang":
            gang = importlib.import_module("headrace.leases.gang")
            cluster = await gang.open_gang(folder, spec, job_id=own_id)
            return cluster
        queue = Queue(
            gate=_gate(folder, spec),
            node_job=partial(_node_job, folder, spec),
            job_ids=() if _has_host_here(spec) else (own_id,),
        )
        pool = importlib.import_module("headrace.leases.pool")
        cluster = await pool.open_pool(folder, spec, queue)
        return cluster

    def job(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the lease's job stands, from a board that is renewed every `poll` seconds."""
        record = read_record(folder.job, JobRecord)
        if record is None:
            return None
        system = system_of(spec.role)
        seen = job_status(system, folder.path.parent, record, spec.role.batch.poll)
        return overdue(seen, folder, spec, system.name) or view_of(seen, system.name)

    def cause(self, folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
        """How the lease's job ended, if that says more than the lease's own files.

        Raises:
            BatchError: The batch system does not answer.
        """
        pool = read_record(folder.pool, PoolRecord)
        if pool is not None and pool.failure is not None:
            return pool.failure
        record = read_record(folder.job, JobRecord)
        if record is None:
            return None
        system = system_of(spec.role)
        late = overdue(
            job_status(system, folder.path.parent, record, 0.0), folder, spec, system.name
        )
        if late is not None:
            return late
        seen = with_books(system, look(system, record))
        if put_back(seen, has_started=folder.host.exists()):
            return put_back_view(seen, system.name)
        if not seen.state.is_final:
            ended = final_status(system, record, _ENDING_S, or_never=True)
            if ended is None:
                return None
            seen = with_books(system, ended)
        if seen.state in (JobState.COMPLETED, JobState.UNKNOWN):
            return None
        view = view_of(with_log(seen, end_of(folder.log, _LOG_BYTES)), system.name)
        symptom = symptom_of(folder)
        if symptom is None or seen.state is not JobState.FAILED:
            return view
        return view.model_copy(update={"why": f"{view.why}: {symptom.words}"})

    def find_job(self, folder: LeaseFolder, spec: LeaseSpec) -> str:
        """The lease's job, also one that was submitted and never recorded.

        Raises:
            BatchError: The batch system does not answer.
        """
        system = system_of(spec.role)
        record = recovered(system, job_name(folder), folder.job)
        return "" if record is None else f"{system.name} job {record.job_id}"

    def kill_leftovers(self, folder: LeaseFolder) -> int:
        """Cancel the lease's jobs, except the one this runs in, and wait until they have gone.

        Raises:
            BatchError: The batch system does not answer, or a job does not end.
        """
        spec = read_record(folder.spec, LeaseSpec)
        if spec is None:
            return end_marked(folder)
        system = system_of(spec.role)
        num_ended = end_jobs(system, folder, _LEAVING_S if folder.close.exists() else 0.0)
        is_marked = mark(folder).items() <= os.environ.items()
        if system.job_variable in os.environ and is_marked and not _has_host_here(spec):
            return num_ended  # the host's own job ends with it
        job_ids = _job_ids(folder, system)
        num_ended += sum(1 for job_id in job_ids if _end(system, _record(job_id), folder))
        return num_ended + end_marked(folder)


def job_spec(
    folder: LeaseFolder, spec: LeaseSpec, python_path: str = "", python: str = sys.executable
) -> JobSpec:
    """The job of a gang; pure.

    Args:
        folder: The lease; all nodes see it under the same path.
        spec: What was asked for; its `code` folders go in front of the module path.
        python_path: Module path of the nodes, as in `PYTHONPATH`.
        python: Interpreter of the nodes, where the site names none.
    """
    role, batch = spec.role, spec.role.batch
    parts = (*spec.code, *python_path.split(os.pathsep))
    path = os.pathsep.join(dict.fromkeys(part for part in parts if part))
    return JobSpec(
        name=job_name(folder),
        command=(batch.python or python, "-m", "headrace.leases.member", str(folder.path)),
        nodes=role.nodes,
        cpus_per_node=role.cpus_per_node,
        gpus_per_node=batch.gpus_per_node,
        gpu_type=batch.gpu_type,
        memory_bytes=batch.memory_per_node,
        time_limit_s=role.lifetime_s,
        folder=str(folder.path),
        log=str(folder.log),
        environment={**mark(folder), "PYTHONPATH": path},
        partition=batch.partition,
        account=batch.account,
        qos=batch.qos,
        constraint=batch.constraint,
        exclusive=batch.exclusive,
        reservation=batch.reservation,
        nodelist=batch.nodelist,
        exclude=(*batch.exclude, *spec.exclude),
        parallel_environment=batch.parallel_environment,
        options=batch.options,
        srun_options=batch.srun_options,
        modules=batch.modules,
        prologue=batch.prologue,
        epilogue=batch.epilogue,
    )


def _job(folder: LeaseFolder, spec: LeaseSpec) -> JobSpec:
    gang = job_spec(folder, spec, _python_path())
    return host_job(gang, spec.role) if spec.role.kind == "pool" else gang


def _all_jobs(folder: LeaseFolder, spec: LeaseSpec) -> list[JobSpec]:
    """The lease's job, and that of a pool's first node."""
    jobs = [] if _has_host_here(spec) else [_job(folder, spec)]
    if spec.role.kind == "pool":
        life_s = spec.role.node_lifetime or spec.role.lifetime_s
        first = NodeRequest(serial=1, number=0, time_limit_s=life_s, exclude=spec.exclude)
        jobs.append(_node_job(folder, spec, first))
    return jobs


def _node_job(folder: LeaseFolder, spec: LeaseSpec, request: NodeRequest) -> JobSpec:
    # which nodes earlier leases failed on is part of the request, and may be dropped from it
    gang = job_spec(folder, spec.model_copy(update={"exclude": ()}), _python_path())
    return node_job(gang, folder, request)


def _python_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def _has_host_here(spec: LeaseSpec) -> bool:
    return spec.role.kind == "pool" and spec.role.host == "control"


def _gate(folder: LeaseFolder, spec: LeaseSpec) -> SubmissionGate:
    return SubmissionGate(system_of(spec.role), folder.path.parent, spec.role.batch)


def job_name(folder: LeaseFolder) -> str:
    """Name of a lease's job: the lease's id, and a mark of the folder it lies in."""
    place = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:8]
    return f"headrace-{folder.lease_id}-{place}"


def _job_ids(folder: LeaseFolder, system: BatchSystem) -> list[str]:
    record = read_record(folder.job, JobRecord)
    if record is not None:
        return [record.job_id]
    if not intent_of(folder.job).exists():
        return []
    return [each.job_id for each in system.find(job_name(folder))]


def _end(system: BatchSystem, record: JobRecord, folder: LeaseFolder) -> bool:
    """End a job; one whose host has said goodbye gets a moment to end by itself."""
    grace_s = _LEAVING_S if folder.closed.exists() else 0.0
    if final_status(system, record, grace_s) is not None:
        return False
    system.cancel([record.job_id])
    if final_status(system, record, _CANCEL_TIMEOUT_S) is None:
        raise BatchError(
            f"{system.name} job {record.job_id} was cancelled and has not ended "
            f"after {_CANCEL_TIMEOUT_S:g} s",
            f"See `{system.show} {record.job_id}`; `headrace lease reap` tries again.",
        )
    return True


def _record(job_id: str) -> JobRecord:
    return JobRecord(job_id=job_id, name="", submitted_at=0.0)


def backend() -> BatchBackend:
    """The backend that the table of backends asks for."""
    return BatchBackend()
