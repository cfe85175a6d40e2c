"""IBM Spectrum LSF: its commands' answers as records.

Sources: the reference pages bsub, bjobs (`-o`, `-json`), bacct, bkill, blaunch, bqueues (`-l`) and
bparams of LSF 10.1.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from typing_extensions import override

from headrace.batch import system
from headrace.batch.commands import CommandResult
from headrace.batch.findings import Finding, QueueFacts, judge_queue, longest_s
from headrace.batch.job_records import JobSpec, JobState, JobStatus, ended_on
from headrace.errors import BatchError
from headrace.recipe.batch import Batch

_STATES = {
    **dict.fromkeys(("PEND", "PSUSP", "PROV", "WAIT"), JobState.PENDING),
    # in UNKWN, LSF cannot reach the host: no proof of an end
    **dict.fromkeys(("RUN", "USUSP", "SSUSP", "UNKWN"), JobState.RUNNING),
    **dict.fromkeys(("DONE", "POST_DONE"), JobState.COMPLETED),
    "ZOMBI": JobState.NODE_FAILED,
    "EXIT": JobState.FAILED,
}
"""Source: bjobs, "STAT"."""

_REASONS = {
    **dict.fromkeys(("TERM_RUNLIMIT", "TERM_DEADLINE", "TERM_WINDOW"), JobState.TIMED_OUT),
    **dict.fromkeys(("TERM_MEMLIMIT", "TERM_SWAP"), JobState.OUT_OF_MEMORY),
    **dict.fromkeys(("TERM_OWNER", "TERM_FORCE_OWNER"), JobState.CANCELLED),
    **dict.fromkeys(("TERM_ADMIN", "TERM_FORCE_ADMIN"), JobState.CANCELLED),
    "TERM_PREEMPT": JobState.PREEMPTED,
    "TERM_REMOVE_HUNG_JOB": JobState.NODE_FAILED,
}
"""Source: bacct, "termination reasons displayed by bacct"."""

_NEVER = re.compile(r"invalid or never satisfied", re.IGNORECASE)
_FIELDS = "jobid stat job_name exit_code exit_reason pend_reason exec_host"
_DEFAULT = re.compile(r"^Default Queues?:\s+(\S.*)$", re.MULTILINE)
_STATUS = re.compile(r"^ *PRIO +NICE +STATUS .*\n\s*\S+\s+\S+\s+(\w+):(\w+)", re.MULTILINE)
_LIMIT_NAMES = re.compile(r"\b[A-Z]+LIMIT\b")
_MINUTES = re.compile(r"([\d.]+) min")


class Lsf(system.BatchSystem):
    """LSF through its commands."""

    lacks = system.ONLY_SLURM | {"parallel_environment": "that is Grid Engine's"}
    refuses = {
        "-J": system.NAMED,
        "-n": system.ONE_TASK_A_NODE,
        "-o, -e, -oo, -eo": system.LOGS,
        "-cwd": system.FOLDER,
        "-r": system.ONCE,
        "-K": system.ID_AT_ONCE,
        "-I": system.NO_TERMINAL,
        "-W": "write `lifetime` of the role",
        "-q": "write `batch.partition`",
        "-P": "write `batch.account`",
        "-gpu": "write `batch.gpus_per_node`",
    }

    name = "LSF"
    template = "lsf"
    config_variable = "LSF_ENVDIR"
    programs_variable = "LSF_BINDIR"
    job_variable = "LSB_JOBID"
    job_variables = ("LSB_", "LS_")
    accounting_pause_s = 30.0
    show = "bjobs -l "
    submit_command = ("bsub",)
    submitted = re.compile(r"Job <(?P<id>\d+)> is submitted")
    cancel_command = ("bkill",)
    unclear = re.compile(
        r"cannot connect to LSF|LSF is down|not responding|still trying|communication|timed? ?out"
        r"|connection refused|try later",
        re.IGNORECASE,
    )
    # MAX_PEND_JOBS of lsb.params
    full = re.compile(r"pending job (slot )?(threshold|limit)|MAX_PEND_JOBS", re.IGNORECASE)
    nothing = re.compile(
        r"is not found|no matching job|no (unfinished )?job found|already finished"
    )
    hint = "`bqueues -l` shows the queues' limits."
    silent = "Is LSF up? `batch.config` must name the LSF_ENVDIR of this cluster."
    programs = ("bsub", "bjobs", "bkill", "bacct", "bqueues")
    version_option = "-V"

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        return {each.job_id: each for each in self._bjobs(*job_ids)} if job_ids else {}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        found = parse_bacct(self._ask("bacct", "-l", "-UF", *job_ids)) if job_ids else []
        return {each.job_id: each for each in found}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return system.by_id(self._bjobs("-J", name))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """Return the run limit of the queue with the longest; LSF chooses among the queues."""
        queues = parse_queues(self._ask("bqueues", "-l"))
        names = self._queues_of(batch.partition)
        return longest_s(queues[name].limit_s for name in names if name in queues)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return every other word of `LSB_MCPU_HOSTS`."""
        return tuple(environment.get("LSB_MCPU_HOSTS", "").split()[::2])

    @override
    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        queues = parse_queues(self._ask("bqueues", "-l"))
        for each in self._queues_of(spec.partition) or [None]:
            yield from judge_queue(each, queues, spec)

    def _queues_of(self, partition: str | None) -> Sequence[str | None]:
        """Return the queues from which LSF chooses for a job; empty if no default is set."""
        if partition:
            return partition.split()
        default = _DEFAULT.search(self._ask("bparams"))
        return default[1].split() if default else []

    def _bjobs(self, *which: str) -> list[JobStatus]:
        return parse_bjobs(self._ask("bjobs", "-a", "-json", "-o", _FIELDS, *which))

    @override
    def _complaints(self, answer: CommandResult) -> list[str]:
        about_nothing = [line for line in answer.output.splitlines() if "not found" in line]
        return answer.error.splitlines() or about_nothing


def parse_bjobs(text: str) -> list[JobStatus]:
    """Parse the output of `bjobs -json` with the fields `_FIELDS`."""
    _, brace, rest = text.partition("{")  # warnings about a slow connection may come first
    if not brace:
        return []
    try:
        records: list[dict[str, str]] = json.loads(brace + rest).get("RECORDS", [])
    except ValueError as error:
        raise BatchError(f"LSF does not answer bjobs in JSON: {error}") from error
    return [_status(record) for record in records if "ERROR" not in record]


def _status(record: dict[str, str]) -> JobStatus:
    stat = record["STAT"]
    # a state of a later LSF proves no end
    state = _STATES.get(stat, JobState.RUNNING)
    nodes = _nodes(record.get("EXEC_HOST", "").split(":"))
    if state.is_final:
        code = record.get("EXIT_CODE", "")
        why = record.get("EXIT_REASON") or (code and f"exit {code}")
        return _ended(record["JOBID"], stat, why, nodes)
    if state is JobState.RUNNING:
        return JobStatus(job_id=record["JOBID"], state=state, nodes=nodes)
    reason = record.get("PEND_REASON", "").rstrip("; ")
    never_starts = _NEVER.search(reason) is not None
    return JobStatus(job_id=record["JOBID"], state=state, reason=reason, never_starts=never_starts)


def parse_bacct(text: str) -> list[JobStatus]:
    """Return the jobs in the output of `bacct -l -UF`."""
    found = []
    for block in re.split(r"^(?=Job <\d+>)", text, flags=re.MULTILINE):
        head = re.match(r"Job <(\d+)>.*?Status <(\w+)>", block)
        if head:
            reason = re.search(r"Completed <\w+>; (TERM_[^\n]*)", block)
            hosts = re.search(r"[Dd]ispatched [^<\n]*((?:<[^>\n]+> ?)+)", block)
            nodes = _nodes(re.findall(r"<([^>]+)>", hosts[1]) if hosts else ())
            found.append(_ended(head[1], head[2], reason[1] if reason else "", nodes))
    return found


def _ended(job_id: str, stat: str, reason: str, nodes: tuple[str, ...]) -> JobStatus:
    state = _STATES.get(stat, JobState.FAILED)
    if state is JobState.FAILED:
        state = _REASONS.get(reason.partition(":")[0], state)
    return ended_on(nodes, JobStatus(job_id=job_id, state=state, reason=reason.rstrip(".")))


def _nodes(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return hosts from `8*node1` and `node2`, each once, the first task's first."""
    return tuple(dict.fromkeys(each.rpartition("*")[2] for each in hosts if each))


def parse_queues(text: str) -> dict[str, QueueFacts]:
    """Return the queues in the output of `bqueues -l`, by their names."""
    blocks = re.split(r"^QUEUE: +(\S+).*$", text, flags=re.MULTILINE)[1:]
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return {name: _queue(name, block) for name, block in pairs}


def _queue(name: str, block: str) -> QueueFacts:
    status = _STATUS.search(block)
    is_open, is_active = (status[1], status[2]) if status else ("Open", "Active")
    limits = _maximum_limits(block)
    slots = limits.get("TASKLIMIT") or limits.get("PROCLIMIT")
    minutes = _MINUTES.search(limits.get("RUNLIMIT", ""))
    return QueueFacts(
        name=name,
        refuses="" if is_open == "Open" else f"it is {is_open}",
        holds="" if is_active.startswith("Act") else f"it is {is_active}",
        limit_s=float(minutes[1]) * 60 if minutes else None,
        most_cpus=int(slots.split()[-1]) if slots else None,
    )


def _maximum_limits(block: str) -> dict[str, str]:
    """Return limits by name, without the default limits, which a job may raise."""
    before, default, rest = block.partition("DEFAULT LIMITS:")
    text = before + rest.partition("MAXIMUM LIMITS:")[2] if default else block
    found: dict[str, str] = {}
    for names, values in itertools.pairwise(text.splitlines()):
        heads = _LIMIT_NAMES.findall(names)
        if heads and not _LIMIT_NAMES.sub("", names).strip():
            # several limits share a line: "20 min of hostA   3428 min of hostB"
            parts = re.split(r"\s{2,}", values.strip()) if len(heads) > 1 else [values.strip()]
            found |= dict(zip(heads, parts, strict=False))
    return found
