"""Grid Engine: job scripts as text, and its commands' answers as records.

Sources: the manual pages qsub(1), qstat(1), qacct(1), qdel(1), qrsh(1) and sge_status(5) of Son of
Grid Engine 8.1.9, which those of Univa's and Altair's Grid Engine extend.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from typing_extensions import override

from headrace.batch.commands import Answer
from headrace.batch.job_log import queue_log
from headrace.batch.jobs import JobSpec, JobState, JobStatus, ended_on
from headrace.batch.refusals import Refusals
from headrace.batch.scripts import (
    clock,
    first_words,
    lines_of,
    script,
    slots_of,
    with_quotes,
)
from headrace.batch.sge_queues import longest_job_s
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
from headrace.recipe.batch import Batch

_REFUSALS = Refusals(
    system="Grid Engine",
    command="qsub",
    unclear=re.compile(
        r"unable to contact|unable to send message|commlib|got (select|read|send|receive) error"
        r"|connection refused|timed? ?out|no response",
        re.IGNORECASE,
    ),
    full=re.compile(r"only \d+ jobs are allowed", re.IGNORECASE),
    hint="`qconf -sql` lists the queues, `qconf -spl` the parallel environments.",
)
"""How qsub says no; max_u_jobs in sge_conf(5)."""

_FORGOTTEN = re.compile(r"does not exist|not found|already in deletion|since startup")
_IN_BOOKS_FOR_DAYS = "30"

_LIMIT_ENFORCED = "37"
_KILLED = ("17", "100")
_NEVER_BEGAN = {*map(str, range(1, 12)), *map(str, range(18, 22)), "26", "27", "28", "36", "38"}
"""Values of `failed` in the books. Source: sge_status(5)."""


class Sge(BatchSystem):
    """Grid Engine through its commands."""

    name = "Grid Engine"
    config_variable = "SGE_ROOT"
    programs_variable = "SGE_BINARY_PATH"
    job_variable = "JOB_ID"
    job_variables = ("JOB_", "PE_", "SGE_TASK_", "SGE_JOB_")
    books_pause_s = 30.0
    show = "qstat -j"
    submit_command = ("qsub", "-terse")
    submitted = re.compile(r"(?:\A|\s)(?P<id>\d+)\s*\Z")
    refusals = _REFUSALS

    @override
    def render(self, spec: JobSpec) -> str:
        return render(spec)

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """How jobs stand that wait or run."""
        wanted = set(job_ids)
        # all jobs of the user: qstat has no list of jobs
        found = [each for _, each in self._qstat() if each.job_id in wanted]
        return {each.job_id: self._with_reason(each) for each in found}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        """What the books say; they may be some seconds late."""
        wanted = set(job_ids)
        if not wanted:
            return {}
        # of two jobs or more it tells all that the user has had: one look into a large file is
        # cheaper than several
        which = sorted(wanted) if len(wanted) == 1 else []
        command = ("qacct", "-o", self._user(), "-d", _IN_BOOKS_FOR_DAYS, "-j", *which)
        return {each.job_id: each for each in self._books(command) if each.job_id in wanted}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        living = [each for its_name, each in self._qstat() if its_name == name]
        ids = {each.job_id for each in living}
        ended = [each for each in self._books(("qacct", "-j", name)) if each.job_id not in ids]
        return tuple(sorted((*ended, *living), key=lambda each: int(each.job_id)))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """`h_rt` of the queues that may take it."""
        return longest_job_s(self._commands, batch.partition, batch.parallel_environment)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """First words of the lines of its host file."""
        return first_words(environment.get("PE_HOSTFILE"))  # with one slot there is none

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._ask(("qdel", *job_ids))

    def _qstat(self) -> list[tuple[str, JobStatus]]:
        return parse_qstat(self._ask(("qstat", "-u", self._user(), "-xml")))

    def _user(self) -> str:
        """Who we are where the commands run."""
        return self._ask(("id", "-un")).strip()

    def _books(self, command: Sequence[str]) -> list[JobStatus]:
        return parse_qacct(self._ask(command))

    def _with_reason(self, status: JobStatus) -> JobStatus:
        if not status.never_starts:
            return status
        lines = self._ask(("qstat", "-j", status.job_id)).splitlines()
        why = [line.partition(":")[2].strip() for line in lines if line.startswith("error reason")]
        return status.model_copy(update={"reason": "; ".join(why) or status.reason})

    @override
    def _is_about_nothing(self, answer: Answer) -> bool:
        failures = [line for line in lines_of(answer) if re.match(r"error|denied|no jobs", line)]
        return bool(failures) and all(_FORGOTTEN.search(line) for line in failures)


def render(spec: JobSpec) -> str:
    """The job script of a spec; `qrsh -inherit` runs the command on all nodes but the first."""
    directives = [f"#$ {option}" for option in _options(spec)]
    # a shell on the other host reads the words once more
    qrsh = 'PATH="$PATH:$SGE_BINARY_PATH" qrsh -inherit -nostdin "$host"'
    launch = f'{qrsh} /bin/bash "$(printf %q "$file")" $i'
    return script(directives, spec, hosts='"$PE_HOSTFILE"', launch=launch)


def parse_qstat(text: str) -> list[tuple[str, JobStatus]]:
    """Names and jobs of the output of `qstat -xml`.

    Raises:
        BatchError: It is no XML.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BatchError(f"Grid Engine does not answer qstat in XML: {error}") from error
    found = []
    for job in root.iter("job_list"):
        job_id, letters = job.findtext("JB_job_number", ""), job.findtext("state", "")
        _, _, host = job.findtext("queue_name", "").partition("@")
        found.append((job.findtext("JB_name", ""), _status(job_id, letters, host)))
    return found


def parse_qacct(text: str) -> list[JobStatus]:
    """Jobs of the output of `qacct -j`, in its order; tasks on further nodes are left out."""
    found = []
    for block in re.split(r"^=+\s*$", text, flags=re.MULTILINE):
        pairs = [line.split(None, 1) for line in block.splitlines()]
        fields = {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
        if "jobnumber" in fields and fields.get("pe_taskid", "NONE") in ("NONE", "undefined"):
            found.append(_ended(fields))
    return found


def _status(job_id: str, letters: str, host: str) -> JobStatus:
    """Source of the letters: sge_status(5). `host` is the first task's."""
    pending = "w" in letters or "q" in letters
    failed = pending and "E" in letters
    return JobStatus(
        job_id=job_id,
        state=JobState.PENDING if pending else JobState.RUNNING,
        reason=f"in error state {letters}" if failed else "held" if "h" in letters else "",
        nodes=(host,) if host and not pending else (),
        never_starts=failed,
    )


def _ended(fields: dict[str, str]) -> JobStatus:
    code, _, words = fields.get("failed", "0").partition(":")
    exit_status = fields.get("exit_status", "0").split()[0]
    ended = JobStatus(
        job_id=fields["jobnumber"],
        state=_end(code.strip(), exit_status),
        reason=words.strip() or (f"exit status {exit_status}" if exit_status != "0" else ""),
    )
    return ended_on((fields["hostname"],) if "hostname" in fields else (), ended)


def _end(failed: str, exit_status: str) -> JobState:
    if failed == _LIMIT_ENFORCED:
        return JobState.TIMED_OUT
    if failed in _KILLED:  # the books do not tell qdel from other signals
        return JobState.CANCELLED
    if failed in _NEVER_BEGAN:
        return JobState.NODE_FAILED
    return JobState.COMPLETED if exit_status == "0" else JobState.FAILED


def _options(spec: JobSpec) -> list[str]:
    slots = f"-pe {spec.parallel_environment} {slots_of(spec)}"
    only = [f"({'|'.join(spec.nodelist)})"] if spec.nodelist else []
    others = [f"!({'|'.join(spec.exclude)})"] if spec.exclude else []
    nodes = [f"-l h={'&'.join([*only, *others])}"] if only or others else []  # said once
    options = [
        f"-N {spec.name}",
        "-S /bin/bash",
        f"-wd {shlex.quote(spec.folder)}",
        *([slots] if spec.parallel_environment else []),
        f"-l h_rt={clock(spec.time_limit_s)}",
        *([f"-l gpu={spec.gpus_per_node}"] if spec.gpus_per_node else []),
        *([f"-q {spec.partition}"] if spec.partition else []),
        *([f"-P {spec.account}"] if spec.account else []),
        *([f"-ar {spec.reservation}"] if spec.reservation else []),
        *nodes,
        "-j y",
        f"-o {shlex.quote(queue_log(spec.log))}",
        "-r n",  # the control side decides whether work is tried again
        "-w e",  # a job that cannot run even on the empty cluster is refused, not kept waiting
    ]
    return [*options, *map(with_quotes, spec.options)]
