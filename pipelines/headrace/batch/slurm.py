"""Slurm: job scripts as text, and its commands' answers as records.

Sources: https://slurm.schedmd.com/sbatch.html, squeue.html, sacct.html
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence

from typing_extensions import override

from headrace.batch.commands import Answer
from headrace.batch.jobs import STARTED, JobSpec, JobState, JobStatus
from headrace.batch.limits import Limit
from headrace.batch.nodelist import node_names
from headrace.batch.scripts import load, with_quotes
from headrace.batch.slurm_limits import longest_job_s, told_limits
from headrace.batch.slurm_refusals import REFUSALS, is_lasting, told
from headrace.batch.slurm_states import state_of
from headrace.batch.system import BatchSystem
from headrace.recipe.batch import Batch

_NEVER = re.compile(
    r"BadConstraints|Partition(Node|Time)Limit|AccountNotAllowed|QOSNotAllowed|Invalid(Account|QOS)"
    r"|DependencyNeverSatisfied|MaxMemPerLimit"
    r"|(Assoc|QOS)(Max|Grp)?\w*(PerJob|PerNode|MaxWallDuration)\w*|(Assoc|QOS)MinJob\w*"
)
"""Reasons that waiting alone does not change. Source: squeue.html, "job reason codes"."""


_OUT = re.compile(r"ReqNodeNotAvail|Nodes required for job are DOWN")
"""Reasons of a job whose nodes are down, drained or reserved."""

_SQUEUE_FORMAT = "%i|%T|%S|%N|%r|%j"
_SACCT_FORMAT = "JobIDRaw,State,NodeList,Reason,JobName"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_BROKEN = re.compile(r"down|fail|no_respond|.*\*$")
"""States of nodes that have failed. Source: sinfo.html, "node state codes"."""

_IN_USE = {"idle", "mixed", "allocated", "completing"}
"""States of nodes that work."""

_NO_REASON = ("", "None", "(null)")


class Slurm(BatchSystem):
    """Slurm through its commands."""

    name = "Slurm"
    config_variable = "SLURM_CONF"
    job_variable = "SLURM_JOB_ID"
    job_variables = ("SLURM_",)
    index_variable = "SLURM_PROCID"
    show = "scontrol show job"
    submit_command = ("sbatch", "--parsable")
    submitted = re.compile(r"^(?P<id>\d+)(?:;.*)?\s*\Z", re.MULTILINE)
    refusals = REFUSALS

    @override
    def render(self, spec: JobSpec) -> str:
        return render(spec)

    @override
    def refusal(self, spec: JobSpec) -> str:
        """What `sbatch --test-only` says against a job."""
        asked = spec.model_copy(update={"folder": "/"})  # the lease's own is not made yet
        answer = self._commands.run(("sbatch", "--test-only"), render(asked))
        is_refused = is_lasting(answer, lambda: self._has_nodes_out(spec.partition))
        return told(answer) if is_refused else ""

    @override
    def poll(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        # all jobs of the user: ids that Slurm has forgotten would make the query fail
        wanted = set(job_ids)
        return {each.job_id: each for each in self._squeue() if each.job_id in wanted}

    @override
    def accounting(self, job_ids: Sequence[str]) -> dict[str, JobStatus]:
        if not job_ids:
            return {}
        command = ("sacct", "--noheader", "--parsable2", "--allocations", "--duplicates",
                   "--starttime=now-30days", f"--jobs={','.join(job_ids)}",
                   f"--format={_SACCT_FORMAT}")  # fmt: skip
        lines = self._ask(command).splitlines()
        found: dict[str, JobStatus] = {}
        names: dict[str, str] = {}
        for line in filter(str.strip, lines):
            each, name = parse_sacct(line), line.split("|", 4)[4]
            if names.get(each.job_id) == name:  # Slurm has started it again
                each = each.model_copy(update={"earlier": found[each.job_id].state})
            found[each.job_id], names[each.job_id] = each, name
        return {job_id: self._with_failed_nodes(each) for job_id, each in found.items()}

    def _with_failed_nodes(self, ended: JobStatus) -> JobStatus:
        """Add which of its nodes have failed, as far as they still have."""
        if ended.state is not JobState.NODE_FAILED or not ended.nodes:
            return ended
        lines = self._ask(("sinfo", "--noheader", "--Node", "--format=%N %T",
                           f"--nodes={','.join(ended.nodes)}")).splitlines()  # fmt: skip
        broken = {name for name, state in map(str.split, lines) if _BROKEN.match(state)}
        failed = tuple(name for name in ended.nodes if name in broken)
        return ended.model_copy(update={"failed_nodes": failed})

    @override
    def find(self, name: str) -> tuple[JobStatus, ...]:
        return self._squeue(f"--name={name}")

    @override
    def cancel(self, job_ids: Sequence[str]) -> None:
        if job_ids:
            self._ask(("scancel", "--quiet", *job_ids))

    @override
    def limits(self, spec: JobSpec) -> tuple[Limit, ...]:
        """How many jobs the user may have submitted."""
        return told_limits(self._ask, spec.account, spec.qos)

    @override
    def longest_job_s(self, batch: Batch) -> float | None:
        """Longest time of a job."""
        return longest_job_s(self._ask, batch.partition, batch.account, batch.qos)

    @override
    def job_nodes(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Nodes of the job that this is a task of."""
        return tuple(node_names(environment.get("SLURM_JOB_NODELIST", "")))

    def _has_nodes_out(self, partition: str | None) -> bool:
        """Whether nodes are down, drained and the like, which may come back."""
        of = () if partition is None else (f"--partition={partition}",)
        states = self._ask(("sinfo", "--noheader", "--Node", "--format=%T", *of)).split()
        return not set(states) <= _IN_USE

    def _squeue(self, *options: str) -> tuple[JobStatus, ...]:
        command = ("squeue", "--noheader", "--states=all", "--me",
                   f"--format={_SQUEUE_FORMAT}", *options)  # fmt: skip
        lines = self._ask(command).splitlines()
        found = [parse_squeue(line) for line in lines if line.strip()]
        return tuple(sorted(found, key=lambda each: (len(each.job_id), each.job_id)))

    @override
    def _words(self, answer: Answer) -> str:
        reached = REFUSALS.full.search(answer.error)
        return reached[0] if reached else told(answer)


def render(spec: JobSpec) -> str:
    """The job script of a spec.

    Options come first, then the environment, modules, the prologue, one task a node and the
    epilogue; `srun` ends all tasks when one fails or, half a minute later, when the first has
    ended.
    """
    directives = "\n".join(f"#SBATCH {option}" for option in _options(spec))
    exports = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    srun = ("srun", f"--ntasks={spec.nodes}", "--ntasks-per-node=1",
            f"--cpus-per-task={spec.cpus_per_node}", "--kill-on-bad-exit=1", "--wait=30",
            "--export=ALL", *spec.srun_options)  # fmt: skip
    start = shlex.join((*srun, *spec.command))
    run = [f"exec {start}"]
    if spec.epilogue:
        run = ["code=0", f"{start} || code=$?", *spec.epilogue, "exit $code"]
    body = [STARTED, *exports, *load(spec.modules), *spec.prologue, *run]
    return f"#!/bin/bash\n{directives}\nset -e\n" + "\n".join(body) + "\n"


def parse_squeue(line: str) -> JobStatus:
    """A line of `squeue` in the format that headrace asks for."""
    job_id, state, start, nodes, reason, _ = line.split("|", 5)
    known = state_of(state)
    pending = known is JobState.PENDING
    return JobStatus(
        job_id=job_id,
        state=known,
        reason=_reason(reason, state),
        starts_at=_time(start) if pending else None,
        nodes=tuple(node_names(nodes)),
        never_starts=pending and _NEVER.fullmatch(reason) is not None,
        nodes_are_out=pending and _OUT.match(reason) is not None,
    )


def parse_sacct(line: str) -> JobStatus:
    """A line of `sacct` in the format that headrace asks for."""
    job_id, state, nodes, reason, _ = line.split("|", 4)
    return JobStatus(
        job_id=job_id,
        state=state_of(state),
        reason=_reason(reason, state),
        nodes=tuple(node_names(nodes)),
    )


def _options(spec: JobSpec) -> list[str]:
    given = {
        "--job-name": spec.name,
        "--nodes": str(spec.nodes),
        "--ntasks-per-node": "1",
        "--cpus-per-task": str(spec.cpus_per_node),
        "--gres": _gpus(spec),
        "--mem": f"{math.ceil(spec.memory_bytes / 2**20)}M" if spec.memory_bytes else None,
        "--time": _duration(spec.time_limit_s),
        "--partition": spec.partition,
        "--account": spec.account,
        "--qos": spec.qos,
        "--constraint": spec.constraint,
        "--reservation": spec.reservation,
        "--nodelist": ",".join(spec.nodelist) or None,
        "--exclude": ",".join(spec.exclude) or None,
        "--chdir": spec.folder,
        "--output": spec.log.replace("%", "%%"),
        "--open-mode": "append",
    }
    options = [f"{name}={shlex.quote(value)}" for name, value in given.items() if value is not None]
    # the control side decides whether work is tried again; two layers would double it
    exclusive = ["--exclusive"] if spec.exclusive else []
    return [*options, *exclusive, "--no-requeue", *map(with_quotes, spec.options)]


def _gpus(spec: JobSpec) -> str | None:
    kind = f"{spec.gpu_type}:" if spec.gpu_type else ""
    return f"gpu:{kind}{spec.gpus_per_node}" if spec.gpus_per_node else None


def _duration(seconds: float) -> str:
    minutes = math.ceil(seconds / 60)
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock


def _reason(text: str, state: str) -> str:
    by = state.partition(" by ")[2]
    parts = [] if text.strip() in _NO_REASON else [text.strip()]
    return ", ".join([*parts, *([f"by user {by}"] if by else [])])


def _time(text: str) -> float | None:
    if text.isdecimal():  # SLURM_TIME_FORMAT=%s
        return float(text)
    try:
        return time.mktime(time.strptime(text, _TIME_FORMAT))
    except ValueError:  # "N/A"
        return None
