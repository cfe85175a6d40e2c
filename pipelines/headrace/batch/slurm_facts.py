"""What Slurm offers its users, as records out of its commands' answers; pure.

Sources: https://slurm.schedmd.com/sinfo.html, sacctmgr.html
"""

from __future__ import annotations

import re

from headrace.record import Record

NODES_FORMAT = "%P|%a|%l|%D|%t|%c|%m|%G|%f|%N"
"""Format of `sinfo` that `parse_nodes` reads."""

ASSOCIATIONS_FORMAT = "format=account,partition,qos"
"""Format of `sacctmgr show associations` that `parse_association` reads."""

_OUT = ("down", "drain", "drng", "fail", "maint", "unk", "inval", "npc")
_NO_ANSWER = "*"


class NodeGroup(Record):
    """Nodes of a partition that are alike and in the same state."""

    partition: str
    """Name of the partition."""
    is_default: bool
    """Whether jobs go there that name none."""
    is_up: bool
    """Whether the partition runs jobs."""
    limit_s: float | None
    """Longest time of a job, seconds; null for no limit."""
    count: int
    """How many nodes."""
    state: str
    """Their state in Slurm's short words."""
    cpus: int
    """CPUs of each."""
    memory_mib: int
    """Memory of each that jobs may have."""
    gpus: dict[str, int]
    """Accelerators of each by type; the type is empty where Slurm names none."""
    features: tuple[str, ...]
    """What a constraint may name."""
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
    """Account."""
    partition: str
    """Only there; empty for everywhere."""
    qos: tuple[str, ...]
    """Qualities of service that may be asked for."""


def parse_nodes(line: str) -> NodeGroup:
    """A line of `sinfo` in the format that headrace asks for."""
    name, up, limit, count, state, cpus, memory, gres, features, names = line.split("|", 9)
    return NodeGroup(
        partition=name.rstrip("*"),
        is_default=name.endswith("*"),
        is_up=up == "up",
        limit_s=parse_limit(limit),
        count=int(count),
        state=state,
        cpus=_number(cpus),
        memory_mib=_number(memory),
        gpus=parse_gpus(gres),
        features=() if features == "(null)" else tuple(features.split(",")),
        names=names,
    )


def parse_association(line: str) -> Association:
    """A line of `sacctmgr` in the format that headrace asks for."""
    account, partition, qos = line.split("|", 2)
    return Association(account=account, partition=partition, qos=tuple(qos.split(",")))


def parse_limit(text: str) -> float | None:
    """Seconds of a time such as `2-00:00:00`, `30:00` or `infinite`."""
    if text in ("infinite", "UNLIMITED", "n/a"):
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    while len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = parts
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_gpus(gres: str) -> dict[str, int]:
    """Accelerators by type of generic resources such as `gpu:a100:4(S:0-1),nvme:1`."""
    found: dict[str, int] = {}
    for match in re.finditer(r"(?:^|,)gpu(?::([A-Za-z][^:(,]*))?:(\d+)", gres):
        kind = match[1] or ""
        found[kind] = found.get(kind, 0) + int(match[2])
    return found


def _number(text: str) -> int:
    """Numbers of several nodes that are not quite alike end in a plus."""
    return int(text.rstrip("+"))
