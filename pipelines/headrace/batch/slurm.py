"""Slurm: its commands' answers as records.

Sources: https://slurm.schedmd.com/sbatch.html, squeue.html, sacct.html, sinfo.html, sacctmgr.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from typing_extensions import override

from headrace.batch import slurm_queues, system
from headrace.batch.commands import CommandResult
from headrace.batch.findings import Finding, moment, ok, verdict, warn
from headrace.batch.job_records import JobSpec, JobState, JobStatus
from headrace.errors import BatchError
from headrace.recipe.backend import refused
from headrace.recipe.batch import Batch
from headrace.recipe.site import Role

_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"), JobState.PENDING),
    **dict.fromkeys(("REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"), JobState.PENDING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "RESIZING", "SIGNALING"), JobState.RUNNING),
    **dict.fromkeys(("STAGE_OUT", "STOPPED", "SUSPENDED"), JobState.RUNNING),
    **dict.fromkeys(("FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL"), JobState.FAILED),
    **dict.fromkeys(("CANCELLED", "REVOKED"), JobState.CANCELLED),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), JobState.TIMED_OUT),
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), JobState.NODE_FAILED),
    "COMPLETED": JobState.COMPLETED,
    "PREEMPTED": JobState.PREEMPTED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}
"""Source: squeue.html, "job state codes"."""

_NEVER = re.compile(
    r"BadConstraints|Partition(Node|Time)Limit|AccountNotAllowed|QOSNotAllowed|Invalid(Account|QOS)"
    r"|DependencyNeverSatisfied|MaxMemPerLimit"
    r"|(Assoc|QOS)(Max|Grp)?\w*(PerJob|PerNode|MaxWallDuration)\w*|(Assoc|QOS)MinJob\w*"
)
"""Reasons that waiting does not change. Source: squeue.html, "job reason codes"."""

_OUT = re.compile(r"ReqNodeNotAvail|Nodes required for job are DOWN")
"""Reasons of a job whose nodes are down, drained or reserved."""

_LASTING = re.compile(
    r"invalid|unrecognized|can ?not be satisfied"
    r"|more processors requested|more than|exceed|not permitted|access/permission denied"
    r"|unable to process configuration",
    re.IGNORECASE,
)
"""Refusals that waiting does not change, unlike nodes that are down. Source: slurm_errno.c."""

_NO_SUCH_NODES = "configuration is not available"
"""Part of the refusal for nodes that are too small, and for nodes that are drained."""

_BROKEN = re.compile(r"down|fail|no_respond|.*\*$")
"""States of nodes that have failed. Source: sinfo.html, "node state codes"."""

_IN_USE = {"idle", "mixed", "allocated", "completing"}
"""States of working nodes."""

_POWER_SAVING = "~#!%"
"""Suffixes of the state of nodes that are off, boot or go off. Source: sinfo.html."""

_SQUEUE_FORMAT = "%i|%T|%S|%N|%r|%j"
_SACCT_FORMAT = "JobIDRaw,State,NodeList,Reason,JobName"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_NOTHING = ("", "None", "None assigned", "Unknown", "(null)")
_NO_ACCOUNTING = "The ends of jobs are then known only from squeue, for a few minutes."
_ASK_ACCOUNT = "Ask the administrators which account and QOS you may use."


_NODES = "-n, --ntasks, --ntasks-per-node, -c, --cpus-per-task"

_SRUN_REFUSES = {
    _NODES: system.ONE_TASK_A_NODE,
    "-o, --output, -e, --error": system.LOGS,
    "--pty": system.NO_TERMINAL,
    "--multi-prog": system.COMMAND,
    "-N, --nodes": "it starts one task on each node of the job",
    "-K, --kill-on-bad-exit, -W, --wait": "a gang is all or nothing",
    "--export": "the nodes need the environment of the job",
}
"""Options of `srun` that headrace sets, and why."""


class Slurm(system.BatchSystem):
    """Slurm through its commands."""

    lacks = {"parallel_environment": "that is Grid Engine's"}
    refuses = {
        "-J, --job-name": system.NAMED,
        _NODES: system.ONE_TASK_A_NODE,
        "-o, --output, -e, --error, --open-mode": system.LOGS,
        "-D, --chdir": system.FOLDER,
        "--requeue": system.ONCE,
        "--parsable, -W, --wait": system.ID_AT_ONCE,
        "-a, --array": system.ONE_JOB,
        "--wrap": system.COMMAND,
        "--no-requeue": "headrace says so already",
        "--test-only": "`headrace site check` asks that",
        "-N, --nodes": "write `nodes` of the role",
        "-t, --time": "write `lifetime` of the role",
    }
    sets = {
        "partition": "-p, --partition",
        "account": "-A, --account",
        "qos": "-q, --qos",
        "gpus_per_node": "--gres, --gpus-per-node, -G, --gpus, --gpus-per-task",
        "memory_per_node": "--mem, --mem-per-cpu, --mem-per-gpu",
        "constraint": "-C, --constraint",
        "exclusive": "--exclusive",
        "reservation": "--reservation",
        "nodelist": "-w, --nodelist",
        "exclude": "-x, --exclude",
    }
    launchers = ("mpirun", "srun")
    opens_shells = True
    name = "Slurm"
    template = "slurm"
    config_variable = "SLURM_CONF"
    job_variable = "SLURM_JOB_ID"
    job_variables = ("SLURM_",)
    index_variable = "SLURM_PROCID"
    show = "scontrol show job "
    submit_command = ("sbatch", "--parsable")
    submitted = re.compile(r"^(?P<id>\d+)(?:;.*)?\s*\Z", re.MULTILINE)
    cancel_command = ("scancel", "--quiet")
    unclear = re.compile(
        r"timed out|unable to contact|connection refused|connection reset"
        r"|zero bytes were transmitted|resource temporarily unavailable"
        r"|communication connection failure|unexpected message",
        re.IGNORECASE,
    )
    full = re.compile(r"(Assoc|QOS)(Max|Grp)Submit\w*")  # squeue.html, "job reason codes"
    hint = "`sinfo` lists partitions and nodes."
    silent = "Is the controller up? `batch.config` must name the slurm.conf of this cluster."
    programs = ("sbatch", "squeue", "scancel", "sinfo")

    @classmethod
    @override
    def check_role(cls, role: Role) -> None:
        if why := next(refused("batch.srun_options", role.batch.srun_options, _SRUN_REFUSES), ""):
            raise ValueError(why)

    @override
    def refusal(self, spec: JobSpec) -> str:
        answer = self._test(spec)
        is_refused = is_lasting(answer, lambda: self._has_nodes_out(spec.partition))
        return self._words(answer) if is_refused else ""

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        # all jobs of the user: ids that Slurm has forgotten would make the query fail
        return {each.job_id: each for each in self._squeue() if each.job_id in set(job_ids)}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        output = self._ask("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates",
                         "--starttime=now-30days", f"--jobs={','.join(job_ids)}",
                         f"--format={_SACCT_FORMAT}")  # fmt: skip
        found: dict[str, JobStatus] = {}
        names: dict[str, str] = {}
        for line in filter(str.strip, output.splitlines()):
            each, name = parse_sacct(line), line.split("|", 4)[4]
            if names.get(each.job_id) == name:  # Slurm has started it again
                each = each.model_copy(update={"earlier": found[each.job_id].state})
            found[each.job_id], names[each.job_id] = each, name
        return {job_id: self._with_failed_nodes(each) for job_id, each in found.items()}

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return system.by_id(self._squeue(f"--name={name}"))

    @override
    def limits(self, spec: JobSpec) -> tuple[system.Limit, ...]:
        return slurm_queues.submit_limits(self._ask, spec)

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        return slurm_queues.longest_job_s(self._ask, batch)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(node_names(environment.get("SLURM_JOB_NODELIST", "")))

    @override
    def _check_queue(self, spec: JobSpec) -> Iterator[Finding]:
        groups = slurm_queues.ask_nodes(self._ask)
        try:
            self._ask("sacct", "--noheader", "--allocations", "--starttime=now-1minute")
            yield ok("accounting", "sacct answers")
        except BatchError as error:
            yield warn("accounting", error.what, _NO_ACCOUNTING)
        nodes = slurm_queues.of_partition(groups, spec.partition)
        if isinstance(nodes, Finding):
            yield nodes
            return
        yield from slurm_queues.judge_partition(nodes, spec)
        try:
            associations = slurm_queues.ask_associations(self._ask)
            yield from slurm_queues.judge_account(associations, spec)
        except BatchError as error:
            yield warn("account", error.what, _ASK_ACCOUNT)
        # standard format: these times are for people, not for parsing
        answer = self._test(spec, "env", "SLURM_TIME_FORMAT=standard")
        yield verdict("sbatch --test-only", answer)

    def _test(self, spec: JobSpec, *before: str) -> CommandResult:
        """Let Slurm judge the exact script; its answer includes the expected start."""
        asked = spec.model_copy(update={"folder": "/"})  # the lease's folder does not exist yet
        return self.commands.run((*before, "sbatch", "--test-only"), self.render(asked))

    def _has_nodes_out(self, partition: str | None) -> bool:
        """Whether nodes are down or drained; these may come back."""
        of = () if partition is None else (f"--partition={partition}",)
        states = self._ask("sinfo", "--noheader", "--Node", "--format=%T", *of).split()
        return not {each.rstrip(_POWER_SAVING) for each in states} <= _IN_USE

    def _with_failed_nodes(self, ended: JobStatus) -> JobStatus:
        """Add the nodes that have failed, as far as they are still failed."""
        if ended.state is not JobState.NODE_FAILED or not ended.nodes:
            return ended
        lines = self._ask("sinfo", "--noheader", "--Node", "--format=%N %T",
                          f"--nodes={','.join(ended.nodes)}").splitlines()  # fmt: skip
        broken = {name for name, state in map(str.split, lines) if _BROKEN.match(state)}
        failed = tuple(name for name in ended.nodes if name in broken)
        return ended.model_copy(update={"failed_nodes": failed})

    def _squeue(self, *options: str) -> list[JobStatus]:
        output = self._ask("squeue", "--noheader", "--states=all", "--me",
                         f"--format={_SQUEUE_FORMAT}", *options)  # fmt: skip
        return [parse_squeue(line) for line in output.splitlines() if line.strip()]

    @override
    def _words(self, answer: CommandResult) -> str:
        reached = self.full.search(answer.error)
        return reached[0] if reached else answer.words


def is_lasting(answer: CommandResult, has_nodes_out: Callable[[], bool]) -> bool:
    """Whether `sbatch --test-only` refused a job permanently: nodes that are out may come back."""
    words = answer.error
    if answer.code in (0, None) or Slurm.full.search(words):
        return False
    if _NO_SUCH_NODES in words:
        return not has_nodes_out()
    return _LASTING.search(words) is not None


def state_of(text: str) -> JobState:
    """Return a job's state from Slurm's text, as `RUNNING` and `CANCELLED by 1000`."""
    word = text.split()[0].rstrip("+") if text.strip() else ""
    return _STATES.get(word, JobState.RUNNING)  # a state of a later Slurm proves no end


def parse_squeue(line: str) -> JobStatus:
    """Parse a line of `squeue` in `_SQUEUE_FORMAT`."""
    job_id, state, start, nodes, reason, _ = line.split("|", 5)
    pending = state_of(state) is JobState.PENDING
    return JobStatus(
        job_id=job_id,
        state=state_of(state),
        reason=_reason(reason, state),
        starts_at=moment(start, _TIME_FORMAT) if pending else None,
        nodes=tuple(node_names(nodes)),
        never_starts=pending and _NEVER.fullmatch(reason) is not None,
        nodes_are_out=pending and _OUT.match(reason) is not None,
    )


def parse_sacct(line: str) -> JobStatus:
    """Parse a line of `sacct` in `_SACCT_FORMAT`."""
    job_id, state, nodes, reason, _ = line.split("|", 4)
    return JobStatus(
        job_id=job_id,
        state=state_of(state),
        reason=_reason(reason, state),
        nodes=tuple(node_names(nodes)),
    )


def _reason(text: str, state: str) -> str:
    by = state.partition(" by ")[2]
    parts = ["" if text.strip() in _NOTHING else text.strip(), by and f"by user {by}"]
    return ", ".join(filter(None, parts))


def node_names(text: str) -> list[str]:
    """Expand Slurm's short form of node names, as `a1,gpu[01-03,7]`; empty for `_NOTHING`.

    Source: scontrol.html, "show hostnames"
    """
    found: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", "" if text in _NOTHING else text):
        head, bracket, rest = part.partition("[")
        inner, _, tail = rest.partition("]")
        found += [f"{head}{each}{tail}" for each in _numbers(inner)] if bracket else [head]
    return found


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"
