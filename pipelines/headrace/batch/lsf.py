"""IBM Spectrum LSF: job scripts as text, and its commands' answers as records.

Sources: the reference pages bsub, bjobs (`-o`, `-json`), bacct, bkill and blaunch of LSF 10.1.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import override

from headrace.batch.commands import Answer
from headrace.batch.job_log import queue_log
from headrace.batch.jobs import JobSpec, JobState, JobStatus, ended_on
from headrace.batch.lsf_queues import longest_job_s
from headrace.batch.refusals import Refusals
from headrace.batch.scripts import (
    clock,
    mebibytes,
    script,
    slots_of,
    with_quotes,
)
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
from headrace.recipe.batch import Batch

_STATES = {
    "PEND": JobState.PENDING,
    "PSUSP": JobState.PENDING,
    "PROV": JobState.PENDING,
    "WAIT": JobState.PENDING,
    "RUN": JobState.RUNNING,
    "USUSP": JobState.RUNNING,
    "SSUSP": JobState.RUNNING,
    "UNKWN": JobState.RUNNING,  # LSF cannot reach the host: no proof of an end
    "ZOMBI": JobState.NODE_FAILED,
    "DONE": JobState.COMPLETED,
    "POST_DONE": JobState.COMPLETED,
    "EXIT": JobState.FAILED,
}
"""Source: bjobs, "STAT"."""

_REASONS = {
    "TERM_RUNLIMIT": JobState.TIMED_OUT,
    "TERM_DEADLINE": JobState.TIMED_OUT,
    "TERM_WINDOW": JobState.TIMED_OUT,
    "TERM_MEMLIMIT": JobState.OUT_OF_MEMORY,
    "TERM_SWAP": JobState.OUT_OF_MEMORY,
    "TERM_PREEMPT": JobState.PREEMPTED,
    "TERM_OWNER": JobState.CANCELLED,
    "TERM_FORCE_OWNER": JobState.CANCELLED,
    "TERM_ADMIN": JobState.CANCELLED,
    "TERM_FORCE_ADMIN": JobState.CANCELLED,
    "TERM_REMOVE_HUNG_JOB": JobState.NODE_FAILED,
}
"""Source: bacct, "termination reasons displayed by bacct"."""

_NEVER = re.compile(r"invalid or never satisfied", re.IGNORECASE)

_REFUSALS = Refusals(
    system="LSF",
    command="bsub",
    unclear=re.compile(
        r"cannot connect to LSF|LSF is down|not responding|still trying|communication|timed? ?out"
        r"|connection refused|try later",
        re.IGNORECASE,
    ),
    full=re.compile(r"pending job (slot )?(threshold|limit)|MAX_PEND_JOBS", re.IGNORECASE),
    hint="`bqueues -l` tells the queues' limits.",
)
"""How bsub says no; MAX_PEND_JOBS of lsb.params."""

_NOTHING = re.compile(r"is not found|no matching job|no (unfinished )?job found|already finished")
_FIELDS = "jobid stat job_name exit_code exit_reason pend_reason exec_host"


class Lsf(BatchSystem):
    """LSF through its commands."""

    name = "LSF"
    config_variable = "LSF_ENVDIR"
    programs_variable = "LSF_BINDIR"
    job_variable = "LSB_JOBID"
    job_variables = ("LSB_", "LS_")
    books_pause_s = 30.0
    show = "bjobs -l"
    submit_command = ("bsub",)
    submitted = re.compile(r"Job <(?P<id>\d+)> is submitted")
    refusals = _REFUSALS

    @override
    def render(self, spec: JobSpec) -> str:
        return render(spec)

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return {each.job_id: each for each in self._bjobs(*job_ids)} if job_ids else {}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        found = parse_bacct(self._ask(("bacct", "-l", "-UF", *job_ids)))
        return {each.job_id: each for each in found}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return tuple(sorted(self._bjobs("-J", name), key=lambda each: int(each.job_id)))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """The queue's run limit."""
        return longest_job_s(self._commands, batch.partition)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Every other word of `LSB_MCPU_HOSTS`."""
        return tuple(environment.get("LSB_MCPU_HOSTS", "").split()[::2])

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._ask(("bkill", *job_ids))

    @override
    def _is_about_nothing(self, answer: Answer) -> bool:
        said = answer.error.splitlines() or [
            line for line in answer.output.splitlines() if "not found" in line
        ]
        return bool(said) and all(_NOTHING.search(line) for line in said if line.strip())

    def _bjobs(self, *which: str) -> list[JobStatus]:
        return parse_bjobs(self._ask(("bjobs", "-a", "-json", "-o", _FIELDS, *which)))


def render(spec: JobSpec) -> str:
    """The job script of a spec; `blaunch` runs the command on all nodes but the first."""
    directives = [f"#BSUB {option}" for option in _options(spec)]
    launch = 'blaunch -n "$host" /bin/bash "$file" $i'
    return script(directives, spec, hosts='"$LSB_DJOB_HOSTFILE"', launch=launch)


def parse_bjobs(text: str) -> list[JobStatus]:
    """The output of `bjobs -json` with the fields that headrace asks for.

    Raises:
        BatchError: It is not JSON.
    """
    _, brace, rest = text.partition("{")  # words about a slow connection may come first
    if not brace:
        return []
    try:
        records: list[dict[str, str]] = json.loads(brace + rest).get("RECORDS", [])
    except ValueError as error:
        raise BatchError(f"LSF does not answer bjobs in JSON: {error}") from error
    return [_status(record) for record in records if "ERROR" not in record]


def parse_bacct(text: str) -> list[JobStatus]:
    """Jobs of the output of `bacct -l -UF`."""
    found = []
    for block in re.split(r"^(?=Job <\d+>)", text, flags=re.MULTILINE):
        head = re.match(r"Job <(\d+)>.*?Status <(\w+)>", block)
        if head:
            reason = re.search(r"Completed <\w+>; (TERM_[^\n]*)", block)
            hosts = re.search(r"[Dd]ispatched [^<\n]*((?:<[^>\n]+> ?)+)", block)
            nodes = _nodes(re.findall(r"<([^>]+)>", hosts[1]) if hosts else ())
            found.append(_ended(head[1], head[2], reason[1] if reason else "", nodes))
    return found


def _status(record: dict[str, str]) -> JobStatus:
    stat = record["STAT"]
    # a state of a later LSF is no proof of an end
    state = _STATES.get(stat, JobState.RUNNING)
    nodes = _nodes(record.get("EXEC_HOST", "").split(":"))
    if state.is_final:
        code = record.get("EXIT_CODE", "")
        why = record.get("EXIT_REASON") or (code and f"exit {code}")
        return _ended(record["JOBID"], stat, why, nodes)
    reason = record.get("PEND_REASON", "").rstrip("; ") if state is JobState.PENDING else ""
    return JobStatus(
        job_id=record["JOBID"],
        state=state,
        reason=reason,
        nodes=() if state is JobState.PENDING else nodes,
        never_starts=_NEVER.search(reason) is not None,
    )


def _nodes(hosts: Iterable[str]) -> tuple[str, ...]:
    """Hosts of such as `8*node1` and `node2`, each once, the first task's first."""
    return tuple(dict.fromkeys(each.rpartition("*")[2] for each in hosts if each))


def _ended(job_id: str, stat: str, reason: str, nodes: tuple[str, ...]) -> JobStatus:
    state = _STATES.get(stat, JobState.FAILED)
    if state is JobState.FAILED:
        state = _REASONS.get(reason.partition(":")[0], state)
    ended = JobStatus(job_id=job_id, state=state, reason=reason.rstrip("."))
    return ended_on(nodes, ended)


def _options(spec: JobSpec) -> list[str]:
    memory = spec.memory_bytes
    kind = f":gmodel={spec.gpu_type}" if spec.gpu_type else ""
    others = " && ".join(f"hname!='{each}'" for each in spec.exclude)
    options = [
        f"-J {spec.name}",
        f"-n {slots_of(spec)}",
        f'-R "span[ptile={spec.cpus_per_node}]"',
        *([f'-R "rusage[mem={mebibytes(memory)}MB/host]"'] if memory else []),
        *([f'-gpu "num={spec.gpus_per_node}{kind}"'] if spec.gpus_per_node else []),  # of each host
        *([f'-R "select[{others}]"'] if others else []),
        *([f'-m "{" ".join(spec.nodelist)}"'] if spec.nodelist else []),
        *(["-x"] if spec.exclusive else []),
        *([f"-U {spec.reservation}"] if spec.reservation else []),
        f"-W {clock(spec.time_limit_s)[:-3]}",
        *([f"-q {spec.partition}"] if spec.partition else []),
        *([f"-P {spec.account}"] if spec.account else []),
        f"-cwd {shlex.quote(spec.folder)}",
        f"-o {shlex.quote(queue_log(spec.log))}",
        "-rn",  # the control side decides whether work is tried again
    ]
    return [*options, *map(with_quotes, spec.options)]
