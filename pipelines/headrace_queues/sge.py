"""Grid Engine: its commands' answers as records.

Sources: the manual pages qsub(1), qstat(1), qacct(1), qdel(1), qrsh(1), qconf(1), queue_conf(5),
sge_pe(5) and sge_status(5) of Son of Grid Engine 8.1.9, which those of Univa's and Altair's Grid
Engine extend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from typing_extensions import override

from headrace.batch import findings, system
from headrace.batch.commands import CommandResult
from headrace.batch.findings import Finding, QueueFacts
from headrace.batch.job_records import JobSpec, JobState, JobStatus, ended_on
from headrace.errors import BatchError, nearest
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role

_DELETED = "being deleted"
_ALL_NAMES = "headrace-*"

_ENDS = {
    "17": JobState.CANCELLED,
    **dict.fromkeys(map(str, (*range(1, 12), *range(18, 22), 26, 27, 28, 36, 38)),
                    JobState.NODE_FAILED),
}  # fmt: skip
"""Values of `failed` in the accounting. Source: sge_status(5)."""

_SIGNALS = {"137": JobState.CANCELLED, "138": JobState.TIMED_OUT}
"""Exit status of jobs that ended by SIGKILL, as by qdel, or SIGUSR1, as by `s_rt`."""

_COMPLAINT = re.compile(r"error|denied|no jobs")
_NAME = re.compile(r"[\w.-]+")
_NO_ACCOUNTING = "An ended job then counts as lost, whatever its reason; share the file."


class Sge(system.BatchSystem):
    """Grid Engine through its commands."""

    lacks = system.ONLY_SLURM | {
        "gpu_type": system.OWN_OPTION,
        "memory_per_node": f"its name for memory differs; {system.OWN_OPTION}, such as "
        "`-l h_vmem=4G`",
        "exclusive": f"its name for it differs; {system.OWN_OPTION}, such as `-l exclusive=true`",
    }
    refuses = {
        "-N": system.NAMED,
        "-j, -o, -e": system.LOGS,
        "-wd, -cwd": system.FOLDER,
        "-r": system.ONCE,
        "-sync": system.ID_AT_ONCE,
        "-t": system.ONE_JOB,
        "-q": "write `batch.partition`",
        "-P": "write `batch.account`",
        "-pe": "write `batch.parallel_environment`",
    }

    name = "Grid Engine"
    template = "sge"
    config_variable = "SGE_ROOT"
    programs_variable = "SGE_BINARY_PATH"
    job_variable = "JOB_ID"
    job_variables = ("JOB_", "PE_", "SGE_TASK_", "SGE_JOB_")
    accounting_pause_s = 30.0
    show = "qstat -j "
    submit_command = ("qsub", "-terse")
    submitted = re.compile(r"(?:\A|\s)(?P<id>\d+)\s*\Z")
    cancel_command = ("qdel",)
    unclear = re.compile(
        r"unable to contact|unable to send message|commlib|got (select|read|send|receive) error"
        r"|connection refused|timed? ?out|no response",
        re.IGNORECASE,
    )
    full = re.compile(r"only \d+ jobs are allowed", re.IGNORECASE)  # max_u_jobs in sge_conf(5)
    nothing = re.compile(r"does not exist|not found|already in deletion|since startup")
    hint = "`qconf -sql` lists the queues, `qconf -spl` the parallel environments."
    silent = "Is the qmaster up? `batch.config` must name the SGE_ROOT of this cluster."
    programs = ("qsub", "qstat", "qacct", "qdel", "qconf")
    version_option = "-help"

    @classmethod
    @override
    def check_role(cls, role: Role) -> None:
        slots = role.cpus_per_node * (role.nodes if role.kind == "gang" else 1)
        if slots > 1 and not role.batch.parallel_environment:
            raise ValueError(
                f"{slots} slots need `batch.parallel_environment`; `qconf -spl` lists them"
            )

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        # all jobs of the user: qstat cannot select by id
        found = [each for _, each in self._qstat() if each.job_id in set(job_ids)]
        return {each.job_id: self._completed(each) for each in found}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        wanted = set(job_ids)
        if not wanted:
            return {}
        # one pass over a large file is cheaper than several; `-d` would leave out jobs whose start
        # is not known, as of a lost node
        which = job_ids[0] if len(wanted) == 1 else _ALL_NAMES
        output = self._ask("qacct", "-o", self._user(), "-j", which)
        return {each.job_id: each for each in parse_qacct(output) if each.job_id in wanted}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        # the queue first: otherwise a job that ends meanwhile would be in neither
        living = {each.job_id: each for its_name, each in self._qstat() if its_name == name}
        ended = {each.job_id: each for each in parse_qacct(self._ask("qacct", "-j", name))}
        return system.by_id(list((ended | living).values()))

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """Return `h_rt` of the queue, else the longest of queues with the job's environment."""
        names = self._ask("qconf", "-sql").split()
        if batch.partition and _NAME.fullmatch(batch.partition):  # not a list, host or pattern
            names = [name for name in names if name == batch.partition]
        queues = {name: self._queue(name) for name in names}
        asked = batch.parallel_environment
        return findings.longest_s(
            queue_facts(name, queue).limit_s
            for name, queue in queues.items()
            if asked is None or asked in _environments(queue)
        )

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return system.first_words(environment.get("PE_HOSTFILE"))  # absent for jobs with one slot

    @override
    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        queues = self._ask("qconf", "-sql").split()
        answer = self.commands.run(("qacct", "-d", "1"))
        if answer.code != 0 and "No such file" in answer.error:
            yield findings.warn("accounting", answer.words, _NO_ACCOUNTING)
        else:
            yield findings.ok("accounting", "qacct answers")
        environments: list[str] = []
        if _NAME.fullmatch(spec.partition or ""):
            queue = self._queue(str(spec.partition)) if spec.partition in queues else {}
            facts = {name: queue_facts(name, queue) for name in queues}
            yield from findings.judge_queue(spec.partition, facts, spec)
            if not queue:
                return
            environments = _environments(queue)
        if spec.parallel_environment is not None:
            yield self._check_environment(spec.parallel_environment, spec, environments)
        # as if all nodes were up and empty; the lease's folder does not exist yet
        script = self.render(spec.model_copy(update={"folder": "/"}))
        verdict = self.commands.run(("qsub", "-w", "v"), script)
        yield findings.verdict("qsub -w v", verdict)

    def _check_environment(self, name: str, spec: JobSpec, of_queue: Sequence[str]) -> Finding:
        known = self._ask("qconf", "-spl").split()
        if name not in known:
            return findings.fail(
                "environment", f"there is none named '{name}'", nearest(name, known)
            )
        settings = parse_fields(self._ask("qconf", "-sp", name))
        return judge_environment(name, settings, spec, of_queue)

    def _queue(self, name: str) -> dict[str, str]:
        return parse_fields(self._ask("qconf", "-sq", name))

    def _qstat(self) -> list[tuple[str, JobStatus]]:
        return parse_qstat(self._ask("qstat", "-u", self._user(), "-xml"))

    def _user(self) -> str:
        """Return the name of this account where the commands run."""
        return self._ask("id", "-un").strip()

    def _completed(self, status: JobStatus) -> JobStatus:
        """Add why a job never starts, or that it can never leave the queue."""
        if status.never_starts:
            lines = self._ask("qstat", "-j", status.job_id).splitlines()
            why = [each.partition(":")[2] for each in lines if each.startswith("error reason")]
            return status.model_copy(update={"reason": "; ".join(why).strip() or status.reason})
        if status.reason == _DELETED and self._is_silent(status.nodes[0]):
            lost = {"state": JobState.NODE_FAILED, "reason": f"{status.nodes[0]} does not answer"}
            return ended_on(status.nodes, status.model_copy(update=lost))
        return status

    def _is_silent(self, host: str) -> bool:
        """Whether a host does not answer: Grid Engine then waits for its report of a job's end."""
        answer = parse_xml(self._ask("qstat", "-f", "-q", f"*@{host}", "-xml"))
        return any("u" in each.findtext("state", "") for each in answer.iter("Queue-List"))

    @override
    def _complaints(self, answer: CommandResult) -> list[str]:
        lines = f"{answer.error}\n{answer.output}".splitlines()
        return [line for line in lines if _COMPLAINT.match(line.strip())]


def parse_xml(text: str) -> ElementTree.Element:
    """Return the output of `qstat -xml`."""
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BatchError(f"Grid Engine does not answer qstat in XML: {error}") from error


def parse_qstat(text: str) -> list[tuple[str, JobStatus]]:
    """Return names and jobs from the output of `qstat -xml`."""
    return [(job.findtext("JB_name", ""), _status(job)) for job in parse_xml(text).iter("job_list")]


def _status(job: ElementTree.Element) -> JobStatus:
    """Parse a job. Source of the letters: sge_status(5). The host is the first task's."""
    letters = job.findtext("state", "")
    host = job.findtext("queue_name", "").partition("@")[2]
    pending = "w" in letters or "q" in letters
    failed = pending and "E" in letters
    nodes = (host,) if host and not pending else ()
    reason = f"in error state {letters}" if failed else "held" if "h" in letters else ""
    return JobStatus(
        job_id=job.findtext("JB_job_number", ""),
        state=JobState.PENDING if pending else JobState.RUNNING,
        reason=_DELETED if "d" in letters and nodes else reason,
        nodes=nodes,
        never_starts=failed,
    )


def parse_qacct(text: str) -> list[JobStatus]:
    """Return jobs from the output of `qacct -j`, in its order, without tasks on further nodes."""
    blocks = map(parse_fields, re.split(r"^=+\s*$", text, flags=re.MULTILINE))
    return [
        _ended(fields)
        for fields in blocks
        if "jobnumber" in fields and fields.get("pe_taskid", "NONE") in ("NONE", "undefined")
    ]


def _ended(fields: Mapping[str, str]) -> JobStatus:
    failed, _, words = fields.get("failed", "0").partition(":")
    exit_status, _, signal = fields.get("exit_status", "0").partition(" ")
    state = JobState.COMPLETED if exit_status == "0" else JobState.FAILED
    if failed.strip() == "100":
        state, words = _SIGNALS.get(exit_status, state), signal.strip(" ()")
    elif failed.strip() == "37":
        state = JobState.TIMED_OUT
        if not _used_its_time(fields):
            state, words = JobState.OUT_OF_MEMORY, f"{words}; it used {fields.get('maxvmem')}"
    ended = JobStatus(
        job_id=fields["jobnumber"],
        state=_ENDS.get(failed.strip(), state),
        reason=words.strip() or (f"exit status {exit_status}" if exit_status != "0" else ""),
    )
    return ended_on((fields["hostname"],) if "hostname" in fields else (), ended)


def _used_its_time(fields: Mapping[str, str]) -> bool:
    """Whether a job reached its `h_rt`; the accounting has one value for this and `h_vmem`."""
    limit = re.search(r"\bh_rt=(\d+)", fields.get("category", ""))
    used = re.match(r"[\d.]+", fields.get("ru_wallclock", ""))
    return limit is None or used is None or float(used[0]) >= int(limit[1])


def parse_fields(text: str) -> dict[str, str]:
    """Return names and values from `qconf -sq` or `-sp`, or from a block of `qacct`."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    pairs = [line.split(None, 1) for line in joined.splitlines()]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def queue_facts(name: str, queue: Mapping[str, str]) -> QueueFacts:
    """Return a queue's settings from `qconf -sq`; if values differ by host, the default.

    A job that reaches `s_rt` gets a signal that ends it too.
    """
    limits = [queue.get(key, "INFINITY").partition(",")[0].strip() for key in ("h_rt", "s_rt")]
    limits_s = [findings.clock_s(each) for each in limits if each != "INFINITY"]
    return QueueFacts(name=name, limit_s=min(limits_s, default=None))


def judge_environment(
    name: str, settings: Mapping[str, str], spec: JobSpec, of_queue: Sequence[str]
) -> Finding:
    """Check that a parallel environment gives each node all its slots, and its queue has it."""
    rule, slots = settings.get("allocation_rule", ""), settings.get("slots", "0")
    if of_queue and name not in of_queue:
        advice = f"It has {', '.join(of_queue)}; `qconf -spl` lists all."
        return findings.fail("environment", f"the queue {spec.partition} has no '{name}'", advice)
    if int(slots) < spec.slots:
        found = f"{name} has {slots} slots, the job asks for {spec.slots}"
        return findings.fail("environment", found, "Ask for less, or name another.")
    if spec.nodes > 1 and settings.get("control_slaves") != "TRUE":
        found = f"{name} has `control_slaves FALSE`: nothing can be started on further nodes"
        return findings.fail("environment", found, "Name another; `qconf -sp NAME` shows one.")
    if rule == str(spec.cpus_per_node) or (rule == "$pe_slots" and spec.nodes == 1):
        return findings.ok("environment", f"{name}: {rule}")
    found = f"{name} has `allocation_rule {rule}`, the job needs {spec.cpus_per_node} a node"
    advice = f"Name one with `allocation_rule {spec.cpus_per_node}`, or the job may get others."
    grade = findings.fail if rule.isdigit() or rule == "$pe_slots" else findings.warn
    return grade("environment", found, advice)


def _environments(queue: Mapping[str, str]) -> list[str]:
    """Return the parallel environments of a queue on any of its hosts."""
    return re.findall(r"[^\s,\[\]=]+", queue.get("pe_list", ""))
