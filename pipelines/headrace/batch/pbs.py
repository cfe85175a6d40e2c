"""OpenPBS and PBS Professional: job scripts as text, and their commands' answers as records.

Torque is not supported: it has no `select`, no JSON and no job history.

Sources: the manual pages qsub(1B), qstat(1B), qselect(1B), qdel(1B), pbsdsh(1B) and
pbs_job_attributes(7B) of OpenPBS 20 and later; exit codes of jobs from its `job.h`.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from headrace.batch.commands import Answer
from headrace.batch.job_log import queue_log
from headrace.batch.jobs import JobSpec, JobState, JobStatus, ended_on
from headrace.batch.pbs_queues import longest_job_s
from headrace.batch.refusals import Refusals
from headrace.batch.scripts import (
    clock,
    first_words,
    mebibytes,
    script,
    with_quotes,
)
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
from headrace.recipe.batch import Batch

_STATES = {
    "B": JobState.RUNNING,
    "E": JobState.RUNNING,
    "H": JobState.PENDING,
    "Q": JobState.PENDING,
    "R": JobState.RUNNING,
    "S": JobState.RUNNING,
    "T": JobState.PENDING,
    "U": JobState.RUNNING,
    "W": JobState.PENDING,
}
"""Source: qstat(1B), "job state"; F is told by how the job ended."""

_EXITS = {
    -20: JobState.NODE_FAILED,  # JOB_EXEC_RERUN_MS_FAIL: the first host was lost
    -26: JobState.OUT_OF_MEMORY,  # JOB_EXEC_KILL_VMEM
    -27: JobState.OUT_OF_MEMORY,  # JOB_EXEC_KILL_MEM
    -29: JobState.TIMED_OUT,  # JOB_EXEC_KILL_WALLTIME
}

_TERMINATED = 91
"""Substate of a job that was deleted."""

_GONE = re.compile(r"unknown job id|job has finished", re.IGNORECASE)

_REFUSALS = Refusals(
    system="PBS",
    command="qsub",
    unclear=re.compile(
        r"cannot connect|connection refused|connection timed out|communication failure|timed? ?out"
        r"|end of file|protocol|server_busy|server is busy|no valid response",
        re.IGNORECASE,
    ),
    full=re.compile(r"would exceed .*limit", re.IGNORECASE),
    hint="`qstat -Q` lists the queues.",
)
"""How qsub says no, such as "would exceed queue's per-user limit"."""


class Pbs(BatchSystem):
    """PBS through its commands."""

    name = "PBS"
    config_variable = "PBS_CONF_FILE"
    job_variable = "PBS_JOBID"
    job_variables = ("PBS_JOB", "PBS_NODE", "PBS_TASK", "PBS_O_")
    show = "qstat -x -f"
    submit_command = ("qsub",)
    submitted = re.compile(r"\b(?P<id>\d+\.\S+)(?=\s*\Z)")
    refusals = _REFUSALS

    @override
    def render(self, spec: JobSpec) -> str:
        return render(spec)

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        told = self._ask(("qstat", "-x", "-f", "-F", "json", *job_ids))
        return {each.job_id: each for each in parse_qstat(told)}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What the history says, if the server keeps one."""
        return self.poll(job_ids)  # users cannot read the accounting files

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        found = self.poll(self._ask(("qselect", "-x", "-N", name)).split()).values()
        return tuple(sorted(found, key=lambda each: (len(each.job_id), each.job_id)))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """The queue's limit, else the server's."""
        return longest_job_s(self._commands, batch.partition)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Lines of its node file, to name them: PBS cannot leave nodes out."""
        return first_words(environment.get("PBS_NODEFILE"))

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._ask(("qdel", *job_ids))

    @override
    def _is_about_nothing(self, answer: Answer) -> bool:
        errors = answer.error.splitlines()
        return bool(errors) and all(_GONE.search(line) for line in errors if line.strip())


def render(spec: JobSpec) -> str:
    """The job script of a spec; `pbsdsh` runs the command on all nodes but the first."""
    directives = [f"#PBS {option}" for option in _options(spec)]
    launch = 'pbsdsh -n $i -- /bin/bash "$file" $i'
    return script(directives, spec, hosts='"$PBS_NODEFILE"', launch=launch)


def parse_qstat(text: str) -> list[JobStatus]:
    """The output of `qstat -x -f -F json`.

    Raises:
        BatchError: It is not JSON, as that of some versions is when a job has odd variables.
    """
    if not text.strip():
        return []
    try:
        jobs: dict[str, dict[str, Any]] = json.loads(text, strict=False).get("Jobs", {})
    except ValueError as error:
        raise BatchError(f"PBS does not answer qstat in JSON: {error}") from error
    return [_status(job_id, job) for job_id, job in jobs.items()]


def _status(job_id: str, job: dict[str, Any]) -> JobStatus:
    comment = str(job.get("comment", ""))
    nodes = _nodes(str(job.get("exec_host", "")))
    if job.get("job_state") in ("F", "X"):
        return ended_on(nodes, JobStatus(job_id=job_id, state=_end(job), reason=comment))
    # a state of a later PBS, or a job that moved to another server, is no proof of an end
    state = _STATES.get(str(job.get("job_state")), JobState.RUNNING)
    pending = state is JobState.PENDING
    return JobStatus(
        job_id=job_id,
        state=state,
        reason=comment if pending else "",
        starts_at=_time(job.get("estimated", {}).get("start_time")) if pending else None,
        nodes=() if pending else nodes,
        never_starts=pending and comment.startswith("Can Never Run"),
    )


def _nodes(exec_host: str) -> tuple[str, ...]:
    """Hosts of such as `node1/8*8+node2/0`, the first task's first."""
    return tuple(dict.fromkeys(each.partition("/")[0] for each in exec_host.split("+") if each))


def _end(job: dict[str, Any]) -> JobState:
    code = job.get("Exit_status")
    if code is not None and int(code) in _EXITS:
        return _EXITS[int(code)]
    if code is None or int(job.get("substate", 0)) == _TERMINATED:
        return JobState.CANCELLED
    return JobState.COMPLETED if int(code) == 0 else JobState.FAILED


def _options(spec: JobSpec) -> list[str]:
    chunk = [f"{spec.nodes}:ncpus={spec.cpus_per_node}:mpiprocs=1"]
    if spec.gpus_per_node:
        chunk.append(f"ngpus={spec.gpus_per_node}")
    if spec.memory_bytes:
        chunk.append(f"mem={mebibytes(spec.memory_bytes)}mb")
    options = [
        f"-N {spec.name}",
        f"-l select={':'.join(chunk)}",
        # each chunk on a host of its own
        f"-l place=scatter{':excl' if spec.exclusive else ''}",
        f"-l walltime={clock(spec.time_limit_s)}",
        *([f"-q {spec.partition}"] if spec.partition else []),
        *([f"-A {spec.account}"] if spec.account else []),
        "-j oe",
        f"-o {shlex.quote(queue_log(spec.log))}",  # written when the job has ended; the log grows
        "-r n",  # the control side decides whether work is tried again
        "-S /bin/bash",
    ]
    return [*options, *map(with_quotes, spec.options)]


def _time(value: object) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    try:
        return time.mktime(time.strptime(str(value)))
    except ValueError:
        return None
