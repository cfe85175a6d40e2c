"""OpenPBS and PBS Professional: their commands' answers as records.

Torque is not supported: it has no `select`, no JSON and no job history.

Sources: the manual pages qsub(1B), qstat(1B), qselect(1B), qdel(1B), pbsdsh(1B),
pbs_job_attributes(7B), pbs_queue_attributes(7B) and pbs_server_attributes(7B) of OpenPBS 20 and
later; exit codes of jobs from its `job.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from typing_extensions import override

from headrace.batch import system
from headrace.batch.findings import (
    Finding,
    QueueFacts,
    clock_s,
    judge_queue,
    longest_s,
    moment,
    ok,
    warn,
)
from headrace.batch.job_records import JobSpec, JobState, JobStatus, ended_on
from headrace.recipe.batch import Batch

_STATES = {**dict.fromkeys("HQTW", JobState.PENDING), **dict.fromkeys("BERSU", JobState.RUNNING)}
"""Source: qstat(1B), "job state"; the meaning of F depends on how the job ended."""

_EXITS = {
    -20: JobState.NODE_FAILED,  # JOB_EXEC_RERUN_MS_FAIL: the first host was lost
    -26: JobState.OUT_OF_MEMORY,  # JOB_EXEC_KILL_VMEM
    -27: JobState.OUT_OF_MEMORY,  # JOB_EXEC_KILL_MEM
    -29: JobState.TIMED_OUT,  # JOB_EXEC_KILL_WALLTIME
}

_TIME_FORMAT = "%a %b %d %H:%M:%S %Y"
_TERMINATED = 91
"""Substate of a job that was deleted."""

_NO_HISTORY = (
    "An ended job then counts as lost, whatever its reason: ask the administrators for "
    "`job_history_enable`."
)

Attributes = Mapping[str, Any]
"""Attributes of a job, a queue or the server, from the JSON of `qstat`."""


class Pbs(system.BatchSystem):
    """PBS through its commands."""

    lacks = system.ONLY_SLURM | {
        "parallel_environment": "that is Grid Engine's",
        "gpu_type": system.OWN_OPTION,
        "reservation": "a reservation is a queue; write it into `batch.partition`",
        "nodelist": system.OWN_OPTION,
        "exclude": system.OWN_OPTION,
    }
    refuses = {
        "-N": system.NAMED,
        "-j, -k, -o, -e": system.LOGS,
        "-r": system.ONCE,
        "-W block=true": system.ID_AT_ONCE,
        "-J": system.ONE_JOB,
        "-I": system.NO_TERMINAL,
        "-q": "write `batch.partition`",
        "-A": "write `batch.account`",
    }

    name = "PBS"
    template = "pbs"
    config_variable = "PBS_CONF_FILE"
    job_variable = "PBS_JOBID"
    job_variables = ("PBS_JOB", "PBS_NODE", "PBS_TASK", "PBS_O_")
    show = "qstat -x -f "
    submit_command = ("qsub",)
    submitted = re.compile(r"\b(?P<id>\d+\.\S+)(?=\s*\Z)")
    cancel_command = ("qdel",)
    unclear = re.compile(
        r"cannot connect|connection refused|connection timed out|communication failure|timed? ?out"
        r"|end of file|protocol|server_busy|server is busy|no valid response",
        re.IGNORECASE,
    )
    full = re.compile(r"would exceed .*limit", re.IGNORECASE)  # "… queue's per-user limit"
    nothing = re.compile(r"unknown job id|job has finished", re.IGNORECASE)
    hint = "`qstat -Q` lists the queues."
    silent = (
        "Is the server up? `batch.config` must name the pbs.conf of this cluster. Torque, which "
        "has no JSON, is not supported."
    )
    programs = ("qsub", "qstat", "qselect", "qdel")

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        # users cannot read the accounting files: the history is the only accounting
        found = self._qstat("Jobs", "-x", *job_ids) if job_ids else {}
        return {job_id: parse_job(job_id, job) for job_id, job in found.items()}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return system.by_id(
            list(self.poll(self._ask("qselect", "-x", "-N", name).split()).values())
        )

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        # for messages only: PBS cannot exclude nodes
        return system.first_words(environment.get("PBS_NODEFILE"))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        server, queues = self._server(), self._qstat("Queue", "-Q")
        return _limit_s(_queue_of(batch.partition, server), queues, server)

    @override
    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        server = self._server()
        if server.get("job_history_enable") == "True":
            yield ok("accounting", "the server keeps a history")
        else:
            yield warn("accounting", "the server keeps no history of jobs", _NO_HISTORY)
        queues = self._qstat("Queue", "-Q")
        facts = {name: queue_facts(name, queues, server) for name in queues}
        yield from judge_queue(_queue_of(spec.partition, server) or None, facts, spec)

    def _server(self) -> Attributes:
        return next(iter(self._qstat("Server", "-B").values()), {})

    def _qstat(self, key: str, what: str, *job_ids: str) -> dict[str, Attributes]:
        answer = self._ask_json("qstat", what, "-f", "-F", "json", *job_ids) or {}
        found: dict[str, Attributes] = answer.get(key, {})
        return found


def parse_job(job_id: str, job: Attributes) -> JobStatus:
    """Parse a job of `qstat -x -f -F json`."""
    comment = str(job.get("comment", ""))
    hosts = str(job.get("exec_host", "")).split("+")  # node1/8*8+node2/0, the first task's first
    nodes = tuple(dict.fromkeys(each.partition("/")[0] for each in hosts if each))
    if job.get("job_state") in ("F", "X"):
        return ended_on(nodes, JobStatus(job_id=job_id, state=_end(job), reason=comment))
    # a state of a later PBS, or a job that moved to another server, proves no end
    state = _STATES.get(str(job.get("job_state")), JobState.RUNNING)
    if state is not JobState.PENDING:
        return JobStatus(job_id=job_id, state=state, nodes=nodes)
    return JobStatus(
        job_id=job_id,
        state=state,
        reason=comment,
        starts_at=moment(str(job.get("estimated", {}).get("start_time")), _TIME_FORMAT),
        never_starts=comment.startswith("Can Never Run"),
    )


def _end(job: Attributes) -> JobState:
    code = job.get("Exit_status")
    if code is not None and int(code) in _EXITS:
        return _EXITS[int(code)]
    if code is None or int(job.get("substate", 0)) == _TERMINATED:
        return JobState.CANCELLED
    return JobState.COMPLETED if int(code) == 0 else JobState.FAILED


def _queue_of(partition: str | None, server: Attributes) -> str:
    """Return the queue of a job; empty if neither the job nor the server names one."""
    return (partition or server.get("default_queue") or "").partition("@")[0]


def queue_facts(name: str, queues: Mapping[str, Attributes], server: Attributes) -> QueueFacts:
    """Return a queue's settings from the answers of `qstat -Q` and `qstat -B`."""
    queue = queues[name]
    most, least = queue.get("resources_max", {}), queue.get("resources_min", {})
    return QueueFacts(
        name=name,
        refuses="" if queue.get("enabled") == "True" else "it is not enabled",
        holds="" if queue.get("started") == "True" else "it is not started",
        limit_s=_limit_s(name, queues, server),
        most_cpus=int(most["ncpus"]) if "ncpus" in most else None,
        most_nodes=int(most["nodect"]) if "nodect" in most else None,
        least_nodes=int(least.get("nodect", 1)),
    )


def _limit_s(name: str, queues: Mapping[str, Attributes], server: Attributes) -> float | None:
    """Return the longest time of a job in a queue, seconds; None if unlimited or no such queue.

    The server's limit applies if the queue has none. A routing queue gives the most of its
    destinations, but at most its own limit.
    """
    queue = queues.get(name, {})
    own = _walltime_s(queue) if _walltime_s(queue) is not None else _walltime_s(server)
    routed = None
    if queue.get("queue_type") == "Route":
        ahead = {key: each for key, each in queues.items() if key != name}  # avoids cycles
        ways = str(queue.get("route_destinations", "")).split(",")
        names = [each.partition("@")[0].strip() for each in ways]
        routed = longest_s(_limit_s(each, ahead, server) for each in names if each in ahead)
    return min((each for each in (own, routed) if each is not None), default=None)


def _walltime_s(attributes: Attributes) -> float | None:
    walltime = attributes.get("resources_max", {}).get("walltime")
    return None if walltime is None else clock_s(str(walltime))
