"""What LSF tells of its queues, for the choice of a time limit and for the check of a site.

Sources: the reference pages bqueues (`-l`) and bparams of LSF 10.1.
"""

from __future__ import annotations

import itertools
import re

from headrace.batch.asking import answered
from headrace.batch.commands import Commands
from headrace.batch.queue_facts import QueueFacts, longest_s

_SILENT = "Is LSF up? `batch.config` must name the LSF_ENVDIR of this cluster."
_DEFAULT = re.compile(r"^Default Queues?:\s+(\S.*)$", re.MULTILINE)
_STATUS = re.compile(r"^ *PRIO +NICE +STATUS .*\n\s*\S+\s+\S+\s+(\w+):(\w+)", re.MULTILINE)
_LIMIT_NAMES = re.compile(r"\b[A-Z]+LIMIT\b")
_MINUTES = re.compile(r"([\d.]+) min")


def ask_queues(commands: Commands) -> dict[str, QueueFacts]:
    """All queues by their names.

    Raises:
        BatchError: LSF does not answer.
    """
    return {each.name: each for each in parse_queues(_ask(commands, "bqueues", "-l"))}


def queues_of(commands: Commands, partition: str | None) -> list[str]:
    """The queues of which LSF takes one for a job; none when there is no default one.

    Args:
        commands: Runs its commands.
        partition: Queue, or several with blanks; None for the default ones.

    Raises:
        BatchError: LSF does not answer.
    """
    if partition:
        return partition.split()
    default = _DEFAULT.search(_ask(commands, "bparams"))
    return default[1].split() if default else []


def longest_job_s(commands: Commands, partition: str | None) -> float | None:
    """Longest time that LSF gives a job, seconds; None for no limit, or no such queue.

    Args:
        commands: Runs its commands.
        partition: Queue, or several with blanks; None for the default ones.

    Raises:
        BatchError: LSF does not answer.
    """
    queues = ask_queues(commands)
    names = queues_of(commands, partition)
    return longest_s(queues[name].limit_s for name in names if name in queues)


def parse_queues(text: str) -> list[QueueFacts]:
    """The queues of the output of `bqueues -l`."""
    blocks = re.split(r"^QUEUE: +(\S+).*$", text, flags=re.MULTILINE)[1:]
    return [_facts(name, told) for name, told in zip(blocks[::2], blocks[1::2], strict=True)]


def _facts(name: str, told: str) -> QueueFacts:
    status = _STATUS.search(told)
    is_open, is_active = (status[1], status[2]) if status else ("Open", "Active")
    limits = _maximum_limits(told)
    slots = limits.get("TASKLIMIT") or limits.get("PROCLIMIT")
    minutes = _MINUTES.search(limits.get("RUNLIMIT", ""))
    return QueueFacts(
        name=name,
        refuses="" if is_open == "Open" else f"it is {is_open}",
        holds="" if is_active.startswith("Act") else f"it is {is_active}",
        limit_s=float(minutes[1]) * 60 if minutes else None,
        most_cpus=int(slots.split()[-1]) if slots else None,
    )


def _maximum_limits(told: str) -> dict[str, str]:
    """Limits by name; the default ones, which a job may raise, are left out."""
    before, default, rest = told.partition("DEFAULT LIMITS:")
    text = told
    if default:
        text = before + rest.partition("MAXIMUM LIMITS:")[2]
    lines = text.splitlines()
    found: dict[str, str] = {}
    for names, values in itertools.pairwise(lines):
        heads = _LIMIT_NAMES.findall(names)
        if heads and not _LIMIT_NAMES.sub("", names).strip():
            # several limits share a line: "20 min of hostA   3428 min of hostB"
            parts = re.split(r"\s{2,}", values.strip()) if len(heads) > 1 else [values.strip()]
            found |= dict(zip(heads, parts, strict=False))
    return found


def _ask(commands: Commands, *command: str) -> str:
    return answered(commands, command, "LSF", _SILENT)
