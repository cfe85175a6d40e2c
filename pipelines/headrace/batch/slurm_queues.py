"""What Slurm offers a user, and whether it can give what a job asks for.

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
"""Runs a command of Slurm and gives its output; raises BatchError when it does not answer."""


class NodeGroup(Record):
    """Nodes of a partition that are alike and in the same state."""

    partition: str
    is_default: bool
    """Whether jobs go there that name none."""
    is_up: bool
    limit_s: float | None
    """Longest time of a job, seconds; null for no limit."""
    count: int
    state: str
    """Their state in Slurm's short words."""
    cpus: int
    memory_mib: int
    """Memory of each that jobs may have."""
    gpus: dict[str, int]
    """Accelerators of each by type; the type is empty where Slurm names none."""
    names: str
    """Their names, as in `node[1-4]`."""

    @property
    def is_usable(self) -> bool:
        """Whether jobs may start on them, now or when others end."""
        return not self.state.startswith(_OUT) and not self.state.endswith(_NO_ANSWER)

    def num_gpus(self, kind: str | None) -> int:
        """Accelerators of a type on each; None for all types."""
        return sum(count for name, count in self.gpus.items() if kind in (None, name))


class Association(Record):
    """What the books allow a user."""

    account: str
    partition: str
    """Only there; empty for everywhere."""
    qos: tuple[str, ...]
    """Qualities of service that may be asked for."""


def ask_nodes(ask: Ask) -> list[NodeGroup]:
    """All nodes."""
    lines = ask("sinfo", "--noheader", f"--format={_NODES_FORMAT}").splitlines()
    return [parse_nodes(line) for line in lines if line.strip()]


def ask_associations(ask: Ask) -> list[Association]:
    """What the books allow the user; empty where nothing is kept."""
    user = ask("id", "-un").strip()  # a login node may know another one
    of = (f"user={user}", "format=account,partition,qos")
    lines = ask(*_SACCTMGR, "associations", *of).splitlines()
    return [parse_association(line) for line in lines if line.strip()]


def submit_limits(ask: Ask, batch: Batch) -> tuple[Limit, ...]:
    """Limits on submitted jobs of the user's association and of the QOS.

    `MaxJobs` is left to Slurm, which lets jobs wait for it. Limits that users share cannot be kept
    by one of them: Slurm refuses the job, and it is submitted later.
    """
    told, qos = _of_user(ask, "MaxSubmit", batch)
    named = [(most, f"MaxSubmitJobs of account {account}") for account, most in told]
    of_qos = f"MaxSubmitJobsPerUser of QOS {qos}"
    named += [(most, of_qos) for most in _of_qos(ask, "MaxSubmitPU", qos)]
    known = [(most, whose) for most, whose in named if most.isdigit()]
    return tuple(Limit(most=int(most), whose=f"Slurm's ({whose})") for most, whose in known)


def longest_job_s(ask: Ask, batch: Batch) -> float | None:
    """Longest time of a job, seconds: the least of the partition's, the association's, the QOS's.

    Of several partitions, with commas, the least counts, too.
    """
    told = ask("sinfo", "--noheader", "--format=%P|%l").split()
    names = batch.partition.split(",") if batch.partition else []
    limits = [
        limit
        for name, _, limit in (line.rpartition("|") for line in told)
        if (name.rstrip("*") in names if names else name.endswith("*"))
    ]
    try:
        of_user, qos = _of_user(ask, "MaxWall", batch)
        limits += [*(limit for _, limit in of_user), *_of_qos(ask, "MaxWall", qos)]
    except BatchError as error:  # books that are not kept limit nothing
        logger.info("%s", error.what)
    known = map(parse_limit, filter(None, limits))
    return min((each for each in known if each is not None), default=None)


def _of_user(ask: Ask, field: str, batch: Batch) -> tuple[list[tuple[str, str]], str]:
    """The account that counts with a field of it, and the QOS of a job; "" when it is not told."""
    user = ask("id", "-un").strip()
    form = f"format=DefaultAccount,Account,{field},DefaultQOS,QOS"
    told = ask(*_SACCTMGR, "user", "withassoc", f"name={user}", form)
    rows = [line.split("|") for line in told.splitlines() if line.count("|") == 4]
    mine = [row for row in rows if row[1] == (batch.account or row[0])]
    default = next((_default_qos(*row[3:]) for row in mine), "")
    return [(row[1], row[2]) for row in mine], batch.qos or default


def _of_qos(ask: Ask, field: str, name: str) -> list[str]:
    return ask(*_SACCTMGR, "qos", f"name={name}", f"format={field}").split() if name else []


def _default_qos(default: str, allowed: str) -> str:
    """QOS of a job that names none; "" when that is not told."""
    names = allowed.split(",")
    return default or (names[0] if len(names) == 1 else "normal" if "normal" in names else "")


def parse_nodes(line: str) -> NodeGroup:
    """A line of `sinfo` in the format that headrace asks for."""
    name, up, limit, count, state, cpus, memory, gres, names = line.split("|", 8)
    return NodeGroup(
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=up == "up",
        limit_s=parse_limit(limit),
        count=int(count),
        state=state,
        cpus=int(cpus.rstrip("+")),  # of several nodes that are not quite alike
        memory_mib=int(memory.rstrip("+")),
        gpus=parse_gpus(gres),
        names=names,
    )


def parse_association(line: str) -> Association:
    """A line of `sacctmgr` in the format that headrace asks for."""
    account, partition, qos = line.split("|", 2)
    return Association(account=account, partition=partition, qos=tuple(qos.split(",")))


def parse_limit(text: str) -> float | None:
    """Seconds of a time such as `2-00:00:00`, `30:00` or `infinite`."""
    return None if text in ("infinite", "UNLIMITED", "n/a") else clock_s(text)


def parse_gpus(gres: str) -> dict[str, int]:
    """Accelerators by type of generic resources such as `gpu:a100:4(S:0-1),nvme:1`."""
    found: dict[str, int] = {}
    for match in re.finditer(r"(?:^|,)gpu(?::([A-Za-z][^:(,]*))?:(\d+)", gres):
        kind = match[1] or ""
        found[kind] = found.get(kind, 0) + int(match[2])
    return found


def of_partition(groups: Sequence[NodeGroup], name: str | None) -> list[NodeGroup] | Finding:
    """Nodes of the partition that a job goes to; what is wrong when there is none."""
    default = next((each.partition for each in groups if each.is_default), None)
    found = chosen("partition", name or default, sorted({each.partition for each in groups}))
    if isinstance(found, Finding):
        return found
    return [each for each in groups if each.partition == found]


def judge_partition(nodes: Sequence[NodeGroup], spec: JobSpec) -> Iterator[Finding]:
    """Whether a partition can give the nodes and the time; pure."""
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
        seen = f"only {num_usable} of {spec.nodes} with {_wish(spec)} can be used: {out}"
        return warn("nodes", seen, "`sinfo -R` tells why.")
    return ok("nodes", f"{num_usable} can give {_wish(spec)}")


def _lacks(group: NodeGroup, spec: JobSpec) -> str:
    """What nodes have too little of for a job; empty when they have enough."""
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
    """Whether the books, where any are kept, allow a user the account and the QOS; pure."""
    if not associations:
        yield ok("account", "Slurm keeps no associations for you, so none is asked for")
        return
    accounts = sorted({each.account for each in associations})
    if spec.account is not None and spec.account not in accounts:
        seen = f"you have no association with '{spec.account}'"
        yield fail("account", seen, nearest(spec.account, accounts))
        return
    mine = [each for each in associations if spec.account in (None, each.account)]
    places = {each.partition for each in mine}
    if spec.partition and "" not in places and spec.partition not in places:
        seen = f"your associations are not for partition '{spec.partition}'"
        yield fail("account", seen, nearest(spec.partition, places))
        return
    yield ok("account", spec.account or f"your default one, of {', '.join(accounts)}")
    allowed = sorted({name for each in mine for name in each.qos if name})
    if spec.qos is not None and spec.qos not in allowed:
        yield fail("qos", f"'{spec.qos}' is not allowed to you", nearest(spec.qos, allowed))
    else:
        yield ok("qos", spec.qos or "the default one")
