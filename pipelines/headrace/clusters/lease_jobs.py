"""The jobs of a lease: their submission, the causes in their logs, their end."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.batch.job_records import JobSpec, end_of, queue_log
from headrace.batch.queue_state import JobRecord, intent_of
from headrace.batch.system import BatchSystem
from headrace.clusters import preflight
from headrace.clusters.lease_records import AvoidedNode, BadNodes, LeaseSpec, PoolRecord, job_name
from headrace.clusters.local import mark
from headrace.errors import BatchError
from headrace.files.atomic import is_there, read_record, write_if_possible, write_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.record import Record

_CANCEL_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_TAIL_BYTES = 8192
_TAIL_LINES = 5
_LOG_BYTES = 65_536
_OF_ANY_NODE = ("container", "tiers")
"""Pre-flight checks whose problem may be a mistake in the site; others concern the node."""

_TELLING = re.compile(
    r"No such file or directory|command not found|Permission denied|Exec format error"
    r"|cannot execute|No module named|Unable to locate a modulefile|(?:could|can)(?:'t| ?not) open"
)
_NOISE = re.compile(r"\bkill: \(")
_LEADER = re.compile(r"^.*?(?:error:|FATAL:|line \d+:)\s*")
_PROCESS = re.compile(r"\[\d+\]")


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


def job_spec(
    folder: LeaseFolder, spec: LeaseSpec, python_path: str = "", python: str = sys.executable
) -> JobSpec:
    """Return the job of a gang, whose nodes all see the lease's folder under the same path; pure.

    The `python_path` is for modules of its processes; `python` runs if the site names none.
    """
    role, batch = spec.role, spec.role.batch
    path = os.pathsep.join(dict.fromkeys(filter(None, python_path.split(os.pathsep))))
    return JobSpec(
        **{**dict(batch), "exclude": (*batch.exclude, *spec.exclude)},
        name=job_name(folder),
        command=(batch.python or python, "-m", "headrace.clusters.member", str(folder.path)),
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


def host_job(gang: JobSpec, role: Role) -> JobSpec:
    """Return the job of a pool's host: one CPU of one node."""
    program, *_, folder = gang.command
    return gang.model_copy(
        update={
            "command": (program, "-m", "headrace.clusters.host", folder),
            "nodes": 1,
            "cpus_per_node": 1,
            "gpus_per_node": 0,
            "gpu_type": None,
            "memory_per_node": None,
            "constraint": None,
            "exclusive": False,
            "nodelist": (),
            "parallel_environment": None,
            "options": role.host_options,
        }
    )


def node_job(gang: JobSpec, folder: LeaseFolder, request: NodeRequest) -> JobSpec:
    """Return the job of one node of a pool; `exclude` of the request is added to the site's."""
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
    text = end_of(log, _TAIL_BYTES) or end_of(Path(queue_log(str(log))), _TAIL_BYTES)
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


class Symptom(Record):
    """Why a lease's nodes did not come.

    A failure that is the same on a second node, or in a second lease, is not the nodes' fault: a
    container image, an interpreter or a module is missing.
    """

    words: str
    """The messages, without what differs from node to node."""
    num_nodes: int
    """Number of its nodes with these messages."""


def symptom_of(folder: LeaseFolder) -> Symptom | None:
    """Return why a lease's nodes did not come; None if they came, or it is unknown."""
    if is_there(folder.info):
        return None
    found = [
        f"{check.name}: {_plain(check.problem)}"
        for report in preflight.reports(folder)
        for check in report.checks
        if check.problem and check.name in _OF_ANY_NODE
    ]
    if not found and not is_there(folder.host):
        found = telling_lines(end_of(folder.log, _LOG_BYTES))
    return most_common(found)


def telling_lines(log: str) -> list[str]:
    """Return log lines about missing files or programs, without what differs between nodes."""
    lines = [line for line in log.splitlines() if _TELLING.search(line) and not _NOISE.search(line)]
    return [_plain(_LEADER.sub("", line)) for line in lines]


def most_common(found: Iterable[str]) -> Symptom | None:
    """Return the message of most nodes; the first of several."""
    counted = Counter(found).most_common(1)
    return Symptom(words=counted[0][0], num_nodes=counted[0][1]) if counted else None


def _plain(text: str) -> str:
    return _PROCESS.sub("", text).strip()


def end_node_jobs(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """End the jobs of a pool's nodes, even if just being submitted; see `_end`."""
    job_ids = _recorded(folder.jobs.glob("*.json"))
    for intent in folder.jobs.glob("*.submitting"):
        job_ids |= {status.job_id for status in system.find(intent.read_text())}
    num_cancelled = _end(system, sorted(job_ids), grace_s)
    for file in (*folder.jobs.glob("*.json"), *folder.jobs.glob("*.submitting")):
        file.unlink(missing_ok=True)
    return num_cancelled


def end_job(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """End the job that holds the lease's host; see `end_node_jobs`."""
    job_ids = _recorded([folder.job])
    if not job_ids and intent_of(folder.job).exists():
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
