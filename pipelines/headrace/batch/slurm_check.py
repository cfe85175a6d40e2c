"""A role of a site against the real Slurm: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.batch.asking import QueueCheck, hours, said
from headrace.batch.commands import Commands
from headrace.batch.findings import Finding, fail, ok, warn
from headrace.batch.jobs import JobSpec
from headrace.batch.slurm import render
from headrace.batch.slurm_facts import (
    ASSOCIATIONS_FORMAT,
    NODES_FORMAT,
    Association,
    NodeGroup,
    parse_association,
    parse_nodes,
)
from headrace.errors import BatchError, nearest


def _look(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    groups = _groups(commands)
    if isinstance(groups, Finding):
        yield groups
        return
    yield _books(commands)
    nodes = of_partition(groups, spec.partition)
    if isinstance(nodes, Finding):
        yield nodes
        return
    yield from judge_partition(nodes, spec)
    associations = _associations(commands)
    if isinstance(associations, Finding):
        yield associations
    else:
        yield from judge_account(associations, spec)
    yield _verdict(commands, spec)


def of_partition(groups: Sequence[NodeGroup], name: str | None) -> list[NodeGroup] | Finding:
    """Nodes of the partition that a job goes to; what is wrong when there is none.

    Args:
        groups: All nodes.
        name: The partition; None for the default one.
    """
    chosen = [
        each for each in groups if (each.is_default if name is None else each.partition == name)
    ]
    if chosen:
        return chosen
    names = sorted({each.partition for each in groups})
    if name is None:
        advice = f"Write `partition` under `batch`. Valid: {', '.join(names)}."
        return fail("partition", "Slurm has no default partition", advice)
    return fail("partition", f"there is no partition '{name}'", nearest(name, names))


def judge_partition(nodes: Sequence[NodeGroup], spec: JobSpec) -> Iterator[Finding]:
    """Whether a partition can give the nodes and the time; pure.

    Args:
        nodes: Its nodes.
        spec: The job.
    """
    name = nodes[0].partition
    if not nodes[0].is_up:
        yield fail("partition", f"{name} is down", "Name another, or ask the administrators.")
    else:
        yield ok("partition", f"{name}, {sum(each.count for each in nodes)} nodes")
    yield _judge_nodes(nodes, spec)
    limit_s = nodes[0].limit_s
    if limit_s is not None and spec.time_limit_s > limit_s:
        yield fail(
            "time",
            f"the job asks for {hours(spec.time_limit_s)}, {name} gives {hours(limit_s)}",
            "Lower `lifetime` of the role, to a few minutes less than that.",
        )
    else:
        yield ok("time", f"{hours(spec.time_limit_s)} of {hours(limit_s)}")


def _judge_nodes(nodes: Sequence[NodeGroup], spec: JobSpec) -> Finding:
    fitting = [each for each in nodes if not _lacks(each, spec)]
    num_fitting = sum(each.count for each in fitting)
    num_usable = sum(each.count for each in fitting if each.is_usable)
    wanted = f"{spec.nodes} with {_wish(spec)}"
    if num_fitting < spec.nodes:
        lacks = sorted({_lacks(each, spec) for each in nodes} - {""})
        why = f"; others have {' / '.join(lacks)}" if lacks else ""
        advice = (
            "Ask for less: `nodes`, threads or ranks of the role, `batch.memory_per_node`, GPUs."
        )
        return fail("nodes", f"{num_fitting} of {wanted}{why}", advice)
    if num_usable < spec.nodes:
        out = ", ".join(f"{each.names} {each.state}" for each in fitting if not each.is_usable)
        return warn(
            "nodes", f"only {num_usable} of {wanted} can be used: {out}", "`sinfo -R` tells why."
        )
    return ok("nodes", f"{num_usable} can give {_wish(spec)}")


def judge_account(associations: Sequence[Association], spec: JobSpec) -> Iterator[Finding]:
    """Whether the books allow a user the account and the quality of service; pure.

    Args:
        associations: What they allow the user; empty where nothing is kept.
        spec: The job.
    """
    if not associations:
        yield ok("account", "Slurm keeps no associations for you, so none is asked for")
        return
    accounts = sorted({each.account for each in associations})
    if spec.account is not None and spec.account not in accounts:
        advice = nearest(spec.account, accounts)
        yield fail("account", f"you have no association with '{spec.account}'", advice)
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


def _lacks(group: NodeGroup, spec: JobSpec) -> str:
    """What nodes have too little of for a job; empty when they have enough."""
    parts = []
    if group.cpus < spec.cpus_per_node:
        parts.append(f"{group.cpus} CPUs")
    if spec.memory_bytes and group.memory_mib * 2**20 < spec.memory_bytes:
        parts.append(f"{group.memory_mib / 1024:.3g} GiB")
    if group.num_gpus(spec.gpu_type) < spec.gpus_per_node:
        kind = f" {spec.gpu_type}" if spec.gpu_type else ""
        parts.append(f"{group.num_gpus(spec.gpu_type)}{kind} GPUs")
    return f"{', '.join(parts)} ({group.names})" if parts else ""


def _wish(spec: JobSpec) -> str:
    kind = f" {spec.gpu_type}" if spec.gpu_type else ""
    memory = [f"{spec.memory_bytes / 2**30:.3g} GiB"] if spec.memory_bytes else []
    gpus = [f"{spec.gpus_per_node}{kind} GPUs"] if spec.gpus_per_node else []
    return ", ".join([f"{spec.cpus_per_node} CPUs", *memory, *gpus])


def _groups(commands: Commands) -> list[NodeGroup] | Finding:
    answer = commands.run(("sinfo", "--noheader", f"--format={NODES_FORMAT}"))
    if answer.code != 0:
        advice = "Is the controller up? `batch.config` must name the slurm.conf of this cluster."
        return fail("controller", said(answer.error), advice)
    return [parse_nodes(line) for line in answer.output.splitlines() if line.strip()]


def _books(commands: Commands) -> Finding:
    advice = "How jobs end can then only be told from squeue, for the few minutes it remembers."
    try:
        answer = commands.run(("sacct", "--noheader", "--allocations", "--starttime=now-1minute"))
    except BatchError as error:
        return warn("accounting", error.what, advice)
    if answer.code != 0:
        return warn("accounting", said(answer.error), advice)
    return ok("accounting", "sacct answers")


def _associations(commands: Commands) -> list[Association] | Finding:
    advice = "Ask the administrators which account and QOS you may use."
    try:
        user = commands.run(("id", "-un")).output.strip()  # a login node may know another one
        command = ("sacctmgr", "--noheader", "--parsable2", "show", "associations",
                   f"user={user}", ASSOCIATIONS_FORMAT)  # fmt: skip
        answer = commands.run(command)
    except BatchError as error:
        return warn("account", error.what, advice)
    if answer.code != 0:
        return warn("account", said(answer.error), advice)
    return [parse_association(line) for line in answer.output.splitlines() if line.strip()]


def _verdict(commands: Commands, spec: JobSpec) -> Finding:
    """Slurm's own judgement of the very script, and when it would start."""
    # the folder of a lease that is never made
    asked = spec.model_copy(update={"folder": "/"})
    readable = ("env", "SLURM_TIME_FORMAT=standard")  # for people; elsewhere times are read
    answer = commands.run((*readable, "sbatch", "--test-only"), render(asked))
    told = said(answer.error)
    if answer.code == 0:
        return ok("sbatch --test-only", told)
    advice = "Correct the role's `batch` settings; `headrace plan --dry-run` shows the script."
    return fail("sbatch --test-only", told, advice)


CHECK = QueueCheck(
    programs=dict.fromkeys(("sbatch", "squeue", "scancel", "sinfo"), ("--version",)),
    advice="Run headrace where Slurm's commands are (a login node), and have them on PATH.",
    look=_look,
)
