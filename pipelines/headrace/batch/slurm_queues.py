"""Partitions and limits of a user in Slurm, and whether they give what a job requests.

Sources: https://slurm.schedmd.com/sinfo.html, sacctmgr.html
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence

from headrace.batch.findings import Finding, chosen, clock_s, fail, judge_time, ok, warn
from headrace.batch.job_records import JobSpec
from headrace.batch.system import Limit
from headrace.errors import BatchError, nearest
from headrace.recipe.batch import Batch
from headrace.record import Record

logger = logging.getLogger(__name__)

_NODES_FORMAT = "%P|%a|%l|%D|%t|%c|%m|%G|%N"
_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")
_OUT = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "npc")
_NO_ANSWER = "*"
_LESS = "Ask for less: `nodes`, threads or ranks of the role, `batch.memory_per_node`, GPUs."

Ask = Callable[..., str]
"""Runs a command of Slurm and returns its output; raises BatchError if Slurm does not answer."""


class NodeGroup(Record):
    """Nodes of a partition of the same kind and state."""

    partition: str
    is_default: bool
    """Whether jobs that name no partition go there."""
    is_up: bool
    limit_s: float | None
    """Longest time of a job, seconds; null for no limit."""
    count: int
    state: str
    """Their state in Slurm's short form."""
    cpus: int
    memory_mib: int
    """Memory of each for jobs."""
    gpus: dict[str, int]
    """Accelerators of each by type; the type is empty if Slurm names none."""
    names: str
    """Their names, as `node[1-4]`."""

    @property
    def is_usable(self) -> bool:
        """Whether jobs may start on them, now or when others end."""
        return not self.state.startswith(_OUT) and not self.state.endswith(_NO_ANSWER)

    def num_gpus(self, kind: str | None) -> int:
        """Return the accelerators of a type on each; None for all types."""
        return sum(count for name, count in self.gpus.items() if kind in (None, name))


class Association(Record):
    """What the accounting allows a user."""

    account: str
    partition: str
    """The only partition; empty for all."""
    qos: tuple[str, ...]
    """Permitted qualities of service."""


def ask_nodes(ask: Ask) -> list[NodeGroup]:
    """Return all nodes."""
    lines = ask("sinfo", "--noheader", f"--format={_NODES_FORMAT}").splitlines()
    return [parse_nodes(line) for line in lines if line.strip()]


def ask_associations(ask: Ask) -> list[Association]:
    """Return what the accounting allows the user; empty if Slurm keeps no associations."""
    user = ask("id", "-un").strip()  # the account may be another one on a login node
    of = (f"user={user}", "format=account,partition,qos")
    lines = ask(*_SACCTMGR, "associations", *of).splitlines()
    return [parse_association(line) for line in lines if line.strip()]


def submit_limits(ask: Ask, batch: Batch) -> tuple[Limit, ...]:
    """Return the limits on submitted jobs of the user's association and of the QOS.

    `MaxJobs` is left to Slurm: jobs wait for it in the queue. Limits that users share cannot be
    respected by one of them: Slurm refuses the job, and it is submitted later.
    """
    of_user, qos = _of_user(ask, "MaxSubmit", batch)
    named = [(most, f"MaxSubmitJobs of account {account}") for account, most in of_user]
    of_qos = f"MaxSubmitJobsPerUser of QOS {qos}"
    named += [(most, of_qos) for most in _of_qos(ask, "MaxSubmitPU", qos)]
    known = [(most, whose) for most, whose in named if most.isdigit()]
    return tuple(Limit(most=int(most), whose=f"Slurm's ({whose})") for most, whose in known)


def longest_job_s(ask: Ask, batch: Batch) -> float | None:
    """Return the longest time of a job, seconds: least of the partition, association and QOS.

    If several partitions are named, separated by commas, the least counts.
    """
    lines = ask("sinfo", "--noheader", "--format=%P|%l").split()
    names = batch.partition.split(",") if batch.partition else []
    limits = [
        limit
        for name, _, limit in (line.rpartition("|") for line in lines)
        if (name.rstrip("*") in names if names else name.endswith("*"))
    ]
    try:
        of_user, qos = _of_user(ask, "MaxWall", batch)
        limits += [*(limit for _, limit in of_user), *_of_qos(ask, "MaxWall", qos)]
    except BatchError as error:  # without an accounting there are no such limits
        logger.info("%s", error.what)
    known = map(parse_limit, filter(None, limits))
    return min((each for each in known if each is not None), default=None)


def _of_user(ask: Ask, field: str, batch: Batch) -> tuple[list[tuple[str, str]], str]:
    """Return accounts with their value of a field, and the QOS of a job; empty if unknown."""
    user = ask("id", "-un").strip()
    form = f"format=DefaultAccount,Account,{field},DefaultQOS,QOS"
    output = ask(*_SACCTMGR, "user", "withassoc", f"name={user}", form)
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 4]
    mine = [row for row in rows if row[1] == (batch.account or row[0])]
    default = next((_default_qos(*row[3:]) for row in mine), "")
    return [(row[1], row[2]) for row in mine], batch.qos or default


def _of_qos(ask: Ask, field: str, name: str) -> list[str]:
    return ask(*_SACCTMGR, "qos", f"name={name}", f"format={field}").split() if name else []


def _default_qos(default: str, allowed: str) -> str:
    """Return the QOS of a job that names none; empty if unknown."""
    names = allowed.split(",")
    return default or (names[0] if len(names) == 1 else "normal" if "normal" in names else "")


def parse_nodes(line: str) -> NodeGroup:
    """Parse a line of `sinfo` in `_NODES_FORMAT`."""
    name, up, limit, count, state, cpus, memory, gres, names = line.split("|", 8)
    return NodeGroup(
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=up == "up",
        limit_s=parse_limit(limit),
        count=int(count),
        state=state,
        cpus=int(cpus.rstrip("+")),  # the least of nodes that differ
        memory_mib=int(memory.rstrip("+")),
        gpus=parse_gpus(gres),
        names=names,
    )


def parse_association(line: str) -> Association:
    """Parse a line of `sacctmgr` in the format of `ask_associations`."""
    account, partition, qos = line.split("|", 2)
    return Association(account=account, partition=partition, qos=tuple(qos.split(",")))


def parse_limit(text: str) -> float | None:
    """Return the seconds of a time: `2-00:00:00`, `30:00`; None for `infinite`."""
    return None if text in ("infinite", "UNLIMITED", "n/a") else clock_s(text)


def parse_gpus(gres: str) -> dict[str, int]:
    """Return accelerators by type from generic resources, as `gpu:a100:4(S:0-1),nvme:1`."""
    found: dict[str, int] = {}
    for match in re.finditer(r"(?:^|,)gpu(?::([A-Za-z][^:(,]*))?:(\d+)", gres):
        kind = match[1] or ""
        found[kind] = found.get(kind, 0) + int(match[2])
    return found


def of_partition(groups: Sequence[NodeGroup], name: str | None) -> list[NodeGroup] | Finding:
    """Return the nodes of a job's partition, or a finding if it does not exist."""
    default = next((each.partition for each in groups if each.is_default), None)
    found = chosen("partition", name or default, sorted({each.partition for each in groups}))
    if isinstance(found, Finding):
        return found
    return [each for each in groups if each.partition == found]


def judge_partition(nodes: Sequence[NodeGroup], spec: JobSpec) -> Iterator[Finding]:
    """Compare a job with the nodes and the time limit of a partition; pure."""
    name = nodes[0].partition
    if nodes[0].is_up:
        yield ok("partition", f"{name}, {sum(each.count for each in nodes)} nodes")
    else:
        yield fail("partition", f"{name} is down", "Name another, or ask the administrators.")
    yield _judge_nodes(nodes, spec)
    yield judge_time(name, nodes[0].limit_s, spec)


def _judge_nodes(nodes: Sequence[NodeGroup], spec: JobSpec) -> Finding:
    fitting = [each for each in nodes if not _lacks(each, spec)]
    num_usable = sum(each.count for each in fitting if each.is_usable)
    num_fitting = sum(each.count for each in fitting)
    if num_fitting < spec.nodes:
        lacks = sorted({_lacks(each, spec) for each in nodes} - {""})
        why = f"; others have {' / '.join(lacks)}" if lacks else ""
        return fail("nodes", f"{num_fitting} of {spec.nodes} with {_wish(spec)}{why}", _LESS)
    if num_usable < spec.nodes:
        out = ", ".join(f"{each.names} {each.state}" for each in fitting if not each.is_usable)
        found = f"only {num_usable} of {spec.nodes} with {_wish(spec)} can be used: {out}"
        return warn("nodes", found, "`sinfo -R` shows why.")
    return ok("nodes", f"{num_usable} can give {_wish(spec)}")


def _lacks(group: NodeGroup, spec: JobSpec) -> str:
    """Return what nodes have too little of for a job; empty if they have enough."""
    kind = f" {spec.gpu_type}" if spec.gpu_type else ""
    parts = []
    if group.cpus < spec.cpus_per_node:
        parts.append(f"{group.cpus} CPUs")
    if spec.memory_per_node and group.memory_mib * 2**20 < spec.memory_per_node:
        parts.append(f"{group.memory_mib / 1024:.3g} GiB")
    if group.num_gpus(spec.gpu_type) < spec.gpus_per_node:
        parts.append(f"{group.num_gpus(spec.gpu_type)}{kind} GPUs")
    return f"{', '.join(parts)} ({group.names})" if parts else ""


def _wish(spec: JobSpec) -> str:
    kind = f" {spec.gpu_type}" if spec.gpu_type else ""
    memory = [f"{spec.memory_per_node / 2**30:.3g} GiB"] if spec.memory_per_node else []
    gpus = [f"{spec.gpus_per_node}{kind} GPUs"] if spec.gpus_per_node else []
    return ", ".join([f"{spec.cpus_per_node} CPUs", *memory, *gpus])


def judge_account(associations: Sequence[Association], spec: JobSpec) -> Iterator[Finding]:
    """Check the account and QOS of a job against the user's associations, if any; pure."""
    if not associations:
        yield ok("account", "Slurm keeps no associations for you, so none is asked for")
        return
    accounts = sorted({each.account for each in associations})
    if spec.account is not None and spec.account not in accounts:
        found = f"you have no association with '{spec.account}'"
        yield fail("account", found, nearest(spec.account, accounts))
        return
    mine = [each for each in associations if spec.account in (None, each.account)]
    partitions = {each.partition for each in mine}
    if spec.partition and "" not in partitions and spec.partition not in partitions:
        found = f"your associations are not for partition '{spec.partition}'"
        yield fail("account", found, nearest(spec.partition, partitions))
        return
    yield ok("account", spec.account or f"your default one, of {', '.join(accounts)}")
    allowed = sorted({name for each in mine for name in each.qos if name})
    if spec.qos is not None and spec.qos not in allowed:
        yield fail("qos", f"'{spec.qos}' is not allowed to you", nearest(spec.qos, allowed))
    else:
        yield ok("qos", spec.qos or "the default one")
