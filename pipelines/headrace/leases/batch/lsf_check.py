"""A role of a site against the real LSF: what is wrong, and what to do about it.

Sources: the reference pages bqueues (`-l`) and bparams of LSF 10.1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from headrace.errors import BatchError
from headrace.leases.batch.asking import programs, said
from headrace.leases.batch.commands import Commands
from headrace.leases.batch.findings import Finding, Grade
from headrace.leases.batch.jobs import JobSpec
from headrace.leases.batch.queue_check import QueueFacts, chosen, judge_queue

_NEEDED = dict.fromkeys(("bsub", "bjobs", "bkill", "bacct", "bqueues"), ("-V",))
_ADVICE = "Run headrace where the commands of LSF are, and have them on PATH."
_SILENT = "Is LSF up? `batch.config` must name the LSF_ENVDIR of this cluster."
_DEFAULT = re.compile(r"^Default Queues?:\s+(\S+)", re.MULTILINE)
_STATUS = re.compile(r"^ *PRIO +NICE +STATUS .*\n\s*\S+\s+\S+\s+(\w+):(\w+)", re.MULTILINE)
_LIMIT_NAMES = re.compile(r"\b[A-Z]+LIMIT\b")
_MINUTES = re.compile(r"([\d.]+) min")


def findings(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    """What a look at LSF finds for a job; stops where nothing more can be learnt.

    Args:
        commands: Runs its commands.
        spec: The job as headrace would submit it.

    Raises:
        BatchError: LSF does not answer.
    """
    found = list(programs(commands, _NEEDED, _ADVICE))
    yield from found
    if any(each.grade is Grade.FAIL for each in found):
        return
    queues = {each.name: each for each in parse_queues(_ask(commands, "bqueues", "-l"))}
    default = None if spec.partition else _DEFAULT.search(_ask(commands, "bparams"))
    asked = spec.partition or (default[1] if default else "")
    for each in asked.split() or [None]:
        name = chosen(each, tuple(queues))
        if isinstance(name, Finding):
            yield name
        else:
            yield from judge_queue(queues[name], spec)


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
    answer = commands.run(command)
    if answer.code != 0:
        raise BatchError(f"LSF does not answer {command[0]}: {said(answer.error)}", _SILENT)
    return answer.output
