"""What Grid Engine tells of its queues, for the choice of a time limit and for the check of a site.

Sources: qconf(1) and queue_conf(5) of Son of Grid Engine 8.1.9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.batch.asking import answered
from headrace.batch.commands import Commands
from headrace.batch.queue_facts import QueueFacts, clock_s, longest_s

_SILENT = "Is the qmaster up? `batch.config` must name the SGE_ROOT of this cluster."
_NAME = re.compile(r"[\w.-]+")


def ask(commands: Commands, *options: str) -> str:
    """What `qconf` answers.

    Raises:
        BatchError: It does not.
    """
    return answered(commands, ("qconf", *options), "Grid Engine", _SILENT)


def is_one_queue(partition: str | None) -> bool:
    """Whether it names one queue, and is no list, host or pattern, which stand for many."""
    return _NAME.fullmatch(partition or "") is not None


def ask_names(commands: Commands) -> list[str]:
    """Names of all queues.

    Raises:
        BatchError: Grid Engine does not answer.
    """
    return ask(commands, "-sql").split()


def ask_queue(commands: Commands, name: str) -> dict[str, str]:
    """Settings of a queue.

    Raises:
        BatchError: Grid Engine does not answer.
    """
    return parse_fields(ask(commands, "-sq", name))


def longest_job_s(
    commands: Commands, partition: str | None, environment: str | None
) -> float | None:
    """Longest time that Grid Engine gives a job, seconds; None for no limit.

    That of the queue it names; else of the most generous one that has its parallel environment.

    Args:
        commands: Runs its commands.
        partition: The queue; a list, a host or a pattern counts as none.
        environment: The job's parallel environment; None for none.

    Raises:
        BatchError: Grid Engine does not answer.
    """
    names = ask_names(commands)
    if partition and is_one_queue(partition):
        names = [name for name in names if name == partition]
    queues = [ask_queue(commands, name) for name in names]
    open_to_it = [each for each in queues if environment in (None, *environments_of(each))]
    return longest_s(facts_of(each).limit_s for each in open_to_it)


def environments_of(queue: Mapping[str, str]) -> list[str]:
    """Parallel environments of a queue, on whichever of its hosts."""
    return re.findall(r"[^\s,\[\]=]+", queue.get("pe_list", ""))


def facts_of(queue: Mapping[str, str]) -> QueueFacts:
    """A queue out of the answer of `qconf -sq`; of values that differ by host, the usual one."""
    limit = queue.get("h_rt", "INFINITY").partition(",")[0].strip()
    return QueueFacts(
        name=queue["qname"],
        limit_s=None if limit == "INFINITY" else clock_s(limit),
    )


def parse_fields(text: str) -> dict[str, str]:
    """Names and values of the output of `qconf -sq` or `-sp`."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    pairs = [line.split(None, 1) for line in joined.splitlines()]
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
