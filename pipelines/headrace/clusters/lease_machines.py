"""How a lease gets and ends its machines, for the control side and the lease's host; no Dask.

Processes of this machine, or jobs of a batch system: a gang is one job of all nodes, a pool one
job per node. Functions that ask a batch system raise BatchError if it does not answer.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.batch import job_records, queue_state
from headrace.batch.job_records import JobSpec, JobState, JobStatus, JobView, end_of
from headrace.batch.queue_state import JobRecord
from headrace.batch.submission_gate import SubmissionGate, recovered
from headrace.batch.system import BatchSystem, system_of
from headrace.clusters.lease_records import AvoidedNode, BadNodes, LeaseSpec, PoolRecord, job_name
from headrace.clusters.local import end_marked, mark, start_host
from headrace.clusters.preflight import symptom_of
from headrace.errors import BatchError, JobRefusedError
from headrace.files.atomic import is_there, read_record, write_if_possible, write_record
from headrace.files.layout import LeaseFolder

logger = logging.getLogger(__name__)

_LEAVING_S = 5.0
_ENDING_S = 10.0
_CANCEL_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_LOG_BYTES = 65_536
_TAIL_BYTES = 8192
_TAIL_LINES = 5


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
    found = queue_state.job_status(system, folder.path.parent, record, spec.role.batch.poll)
    return overdue(found, folder, spec, system.name) or job_records.view_of(found, system.name)


def cause(folder: LeaseFolder, spec: LeaseSpec) -> JobView | None:
    """Return how the job of a lost lease ended; None if its own files explain as much."""
    pool = read_record(folder.pool, PoolRecord)
    if pool is not None and pool.failure is not None:
        return pool.failure
    record = read_record(folder.job, JobRecord)
    if record is None:
        return None
    system = system_of(spec.role)
    known = queue_state.job_status(system, folder.path.parent, record, 0.0)
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
    """End all of a lease but this process; return how many; raise BatchError if some stay."""
    if spec.role.is_here:
        return end_marked(folder)
    system = system_of(spec.role)
    num_ended = end_node_jobs(system, folder, _LEAVING_S if is_there(folder.close) else 0.0)
    is_marked = mark(folder).items() <= os.environ.items()
    if system.job_variable in os.environ and is_marked and not has_host_here(spec):
        return num_ended  # the host's own job ends with it
    # a job whose host has written `closed` gets a moment to end by itself
    num_ended += _end_job(system, folder, _LEAVING_S if is_there(folder.closed) else 0.0)
    return num_ended + end_marked(folder)


def overdue(found: JobStatus, folder: LeaseFolder, spec: LeaseSpec, system: str) -> JobView | None:
    """Return the view of a running job whose host is overdue; None if it is not."""
    timeout_s = spec.role.start_timeout + spec.lost_after_s
    since = found.running_since
    if is_there(folder.host) or since is None or found.seen_at - since < timeout_s:
        return None
    return job_records.overdue_view(found, system, timeout_s)


def _ended(system: BatchSystem, record: JobRecord, folder: LeaseFolder) -> JobView | None:
    """Return how the job ended, from queue, accounting and log; None if its end is not reported."""
    found = _with_accounting(system, queue_state.current_status(system, record))
    if job_records.put_back(found, has_started=is_there(folder.host)):
        return job_records.put_back_view(found, system.name)
    if not found.state.is_final or found.state is JobState.UNKNOWN:
        ended = queue_state.final_status(system, record, _ENDING_S)
        if ended is None:
            return None
        found = _with_accounting(system, ended)
    if found.state in (JobState.COMPLETED, JobState.UNKNOWN):
        return None
    explained = job_records.with_log(found, end_of(folder.log, _LOG_BYTES))
    view = job_records.view_of(explained, system.name)
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


def end_node_jobs(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """End the jobs of a pool's nodes, even if just being submitted; see `_end`."""
    job_ids = _recorded(folder.jobs.glob("*.json"))
    for intent in folder.jobs.glob("*.submitting"):
        job_ids |= {status.job_id for status in system.find(intent.read_text())}
    num_cancelled = _end(system, sorted(job_ids), grace_s)
    for file in (*folder.jobs.glob("*.json"), *folder.jobs.glob("*.submitting")):
        file.unlink(missing_ok=True)
    return num_cancelled


def _end_job(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """End the job that holds the lease's host; see `end_node_jobs`."""
    job_ids = _recorded([folder.job])
    if not job_ids and queue_state.intent_of(folder.job).exists():
        job_ids = {each.job_id for each in system.find(job_name(folder))}
    return _end(system, sorted(job_ids), grace_s)


def _recorded(files: Iterable[Path]) -> set[str]:
    records = [read_record(file, JobRecord) for file in files]
    return {record.job_id for record in records if record is not None}


def _end(system: BatchSystem, job_ids: Sequence[str], grace_s: float) -> int:
    """Cancel the jobs that do not end within `grace_s`, and await their end; return how many."""
    left = _left(system, job_ids, grace_s)
    if left:
        system.cancel(left)
    stuck = _left(system, left, _CANCEL_TIMEOUT_S)
    if stuck:
        raise BatchError(
            f"{system.name} has not ended cancelled jobs within {_CANCEL_TIMEOUT_S:g} s: "
            f"job {', '.join(stuck)}",
            f"See `{system.show}{stuck[0]}`; `headrace lease reap` tries again.",
        )
    return len(left)


def _left(system: BatchSystem, job_ids: Sequence[str], timeout_s: float) -> list[str]:
    """Return the jobs that have not ended within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        known = system.poll(job_ids) if job_ids else {}
        left = [job_id for job_id in known if not known[job_id].state.is_final]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def _job(folder: LeaseFolder, spec: LeaseSpec) -> JobSpec:
    return host_job(folder, spec) if spec.role.kind == "pool" else job_spec(folder, spec)


def _all_jobs(folder: LeaseFolder, spec: LeaseSpec) -> list[JobSpec]:
    """Return the lease's job, and that of a pool's first node; empty on this machine."""
    if spec.role.is_here:
        return []
    jobs = [] if has_host_here(spec) else [_job(folder, spec)]
    if spec.role.kind == "pool":
        life_s = spec.role.node_lifetime or spec.role.lifetime_s
        first = NodeRequest(serial=1, number=0, time_limit_s=life_s, exclude=spec.exclude)
        jobs.append(node_job(folder, spec, first))
    return jobs


def has_host_here(spec: LeaseSpec) -> bool:
    """Whether the lease's host runs on the control machine."""
    return spec.role.is_here or (spec.role.kind == "pool" and spec.role.host == "control")


def own_jobs(spec: LeaseSpec) -> tuple[str, ...]:
    """Return the job that this process, the lease's host, is in; empty on the control machine."""
    if has_host_here(spec):
        return ()
    return (os.environ.get(system_of(spec.role).job_variable, ""),)


def gate(folder: LeaseFolder, spec: LeaseSpec) -> SubmissionGate:
    """Return the gate of the queue of a lease's role."""
    return SubmissionGate(system_of(spec.role), folder.path.parent, spec.role.batch)


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """Request for the job of a pool's node."""

    serial: int
    """Number of the job in the pool, from 1; unique."""
    number: int
    """Index of the node, from 0."""
    time_limit_s: float
    exclude: tuple[str, ...] = ()
    """Nodes that it must not get."""


def job_spec(folder: LeaseFolder, spec: LeaseSpec) -> JobSpec:
    """Return the job of a gang, whose nodes all see the lease's folder under the same path.

    Its processes have the module path of this one, and its Python if the site names none.
    """
    role, batch = spec.role, spec.role.batch
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(dict.fromkeys(filter(None, folders)))
    python = batch.python or sys.executable
    return JobSpec(
        **{**dict(batch), "exclude": (*batch.exclude, *spec.exclude)},
        name=job_name(folder),
        command=(python, "-m", "headrace.clusters.member", str(folder.path)),
        nodes=role.nodes,
        cpus_per_node=role.cpus_per_node,
        time_limit_s=role.lifetime_s,
        folder=str(folder.path),
        log=str(folder.log),
        environment={**mark(folder), "PYTHONPATH": path},
        heartbeat=str(folder.heartbeat),
        notice=str(folder.notice),
        at_risk=str(folder.at_risk),
        silence_s=role.start_timeout + spec.lost_after_s,
    )


def host_job(folder: LeaseFolder, spec: LeaseSpec) -> JobSpec:
    """Return the job of a pool's host: one CPU of one node."""
    gang = job_spec(folder, spec)
    return gang.model_copy(
        update={
            "command": (gang.command[0], "-m", "headrace.clusters.host", str(folder.path)),
            "nodes": 1,
            "cpus_per_node": 1,
            "gpus_per_node": 0,
            "gpu_type": None,
            "memory_per_node": None,
            "constraint": None,
            "exclusive": False,
            "nodelist": (),
            "parallel_environment": None,
            "options": spec.role.host_options,
        }
    )


def node_job(folder: LeaseFolder, spec: LeaseSpec, request: NodeRequest) -> JobSpec:
    """Return the job of one node of a pool; `exclude` of the request is added to the site's."""
    # nodes to exclude are part of the request, which may drop them
    gang = job_spec(folder, spec.model_copy(update={"exclude": ()}))
    program, arguments = gang.command[0], (str(folder.path), str(request.number))
    return gang.model_copy(
        update={
            "name": f"{gang.name}-{request.serial}",
            "command": (program, "-m", "headrace.clusters.worker", *arguments),
            "notice": "",  # its work goes to other nodes
            "at_risk": "",
            "nodes": 1,
            "time_limit_s": request.time_limit_s,
            "exclude": (*gang.exclude, *request.exclude),
            "log": str(log_file(folder, request.serial)),
        }
    )


def record_file(folder: LeaseFolder, serial: int) -> Path:
    """Return the record of the pool's job with this serial number, which exists until its end."""
    return folder.jobs / f"{serial:06d}.json"


def log_file(folder: LeaseFolder, serial: int) -> Path:
    """Return the log of the pool's job with this serial number."""
    return folder.jobs / f"{serial:06d}.log"


def last_words(folder: LeaseFolder, serial: int) -> str:
    """Return the last lines of a job, else of the batch system's log of it; empty without any."""
    log = log_file(folder, serial)
    of_queue = Path(job_records.queue_log(str(log)))
    text = end_of(log, _TAIL_BYTES) or end_of(of_queue, _TAIL_BYTES)
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def write_pool(folder: LeaseFolder, record: PoolRecord, avoided: tuple[AvoidedNode, ...]) -> None:
    """Write the state of a pool's jobs, and the nodes that the next lease avoids.

    `avoided` are those written before. If the lease's folder was removed, nothing is written.
    """
    if not is_there(folder.spec):
        return
    if avoided and not record.avoids:
        folder.bad_nodes.unlink(missing_ok=True)
    elif record.avoids != avoided:
        why = "; ".join(f"{each.node}: {each.why}" for each in record.avoids)
        nodes = tuple(each.node for each in record.avoids)
        write_record(folder.bad_nodes, BadNodes(nodes=nodes, why=why))
    write_if_possible(folder.pool, record)
