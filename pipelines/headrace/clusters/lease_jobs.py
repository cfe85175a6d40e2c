"""The jobs of a lease: what the batch system is asked for, what their logs tell, their end."""

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
"""Checks of the pre-flight whose problem may be a mistake in the site; others are a node's own."""

_TELLING = re.compile(
    r"No such file or directory|command not found|Permission denied|Exec format error"
    r"|cannot execute|No module named|Unable to locate a modulefile|(?:could|can)(?:'t| ?not) open"
)
_NOISE = re.compile(r"\bkill: \(")
_LEADER = re.compile(r"^.*?(?:error:|FATAL:|line \d+:)\s*")
_PROCESS = re.compile(r"\[\d+\]")


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """What the job of a pool's node is asked to be."""

    serial: int
    """Jobs of the pool are counted from 1; no two have the same."""
    number: int
    """Place of the node, from 0."""
    time_limit_s: float
    exclude: tuple[str, ...] = ()
    """Nodes that it must not get."""


def job_spec(
    folder: LeaseFolder, spec: LeaseSpec, python_path: str = "", python: str = sys.executable
) -> JobSpec:
    """The job of a gang, whose nodes all see the lease's folder under the same path; pure.

    The `python_path` is for modules of its processes; `python` runs where the site names none.
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
    """The job of a pool's host: one CPU of one node, and no more."""
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
    """The job of one node of a pool; what it is to avoid comes on top of what the site avoids."""
    program, place = gang.command[0], (str(folder.path), str(request.number))
    return gang.model_copy(
        update={
            "name": f"{gang.name}-{request.serial}",
            "command": (program, "-m", "headrace.clusters.worker", *place),
            "notice": "",  # its work goes to other nodes
            "at_risk": "",
            "nodes": 1,
            "time_limit_s": request.time_limit_s,
            "exclude": (*gang.exclude, *request.exclude),
            "log": str(log_file(folder, request.serial)),
        }
    )


def record_file(folder: LeaseFolder, serial: int) -> Path:
    """Record of the pool's job with this serial number, until it has ended."""
    return folder.jobs / f"{serial:06d}.json"


def log_file(folder: LeaseFolder, serial: int) -> Path:
    """Log of the pool's job with this serial number."""
    return folder.jobs / f"{serial:06d}.log"


def last_words(folder: LeaseFolder, serial: int) -> str:
    """The last lines of a job, else of the batch system about it; empty when there are none."""
    log = log_file(folder, serial)
    text = end_of(log, _TAIL_BYTES) or end_of(Path(queue_log(str(log))), _TAIL_BYTES)
    return "\n".join(text.splitlines()[-_TAIL_LINES:])


def write_pool(folder: LeaseFolder, record: PoolRecord, avoided: tuple[AvoidedNode, ...]) -> None:
    """Tell how the jobs of a pool stand, and the next lease which nodes to avoid.

    `avoided` are those told before. A lease's folder that was removed is not made again.
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
    """What kept a lease's nodes from coming.

    What fails in the same way on a second node, or in a second lease, is no fault of the nodes: a
    container image, an interpreter or a module that is not there.
    """

    words: str
    """What was said, without what differs from node to node."""
    num_nodes: int
    """On how many of its nodes it was said."""


def symptom_of(folder: LeaseFolder) -> Symptom | None:
    """What kept the nodes of a lease from coming; None when they came, or nothing told why."""
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
    """Lines of a job's log that tell what was missing, without what differs from node to node."""
    lines = [line for line in log.splitlines() if _TELLING.search(line) and not _NOISE.search(line)]
    return [_plain(_LEADER.sub("", line)) for line in lines]


def most_common(found: Iterable[str]) -> Symptom | None:
    """What is said on most nodes; the first of several."""
    counted = Counter(found).most_common(1)
    return Symptom(words=counted[0][0], num_nodes=counted[0][1]) if counted else None


def _plain(text: str) -> str:
    return _PROCESS.sub("", text).strip()


def end_node_jobs(system: BatchSystem, folder: LeaseFolder, grace_s: float) -> int:
    """End the jobs of a pool's nodes, recorded or just being submitted; see `_end`."""
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
    """Cancel the jobs that do not end in that time, and await their end; gives how many."""
    left = _left(system, job_ids, grace_s)
    if left:
        system.cancel(left)
    stuck = _left(system, left, _CANCEL_TIMEOUT_S)
    if stuck:
        raise BatchError(
            f"{system.name} has not ended within {_CANCEL_TIMEOUT_S:g} s what was cancelled: "
            f"job {', '.join(stuck)}",
            f"See `{system.show}{stuck[0]}`; `headrace lease reap` tries again.",
        )
    return len(left)


def _left(system: BatchSystem, job_ids: Sequence[str], timeout_s: float) -> list[str]:
    """Jobs that have not ended in that time."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        told = system.poll(job_ids) if job_ids else {}
        left = [job_id for job_id in told if not told[job_id].state.is_final]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
