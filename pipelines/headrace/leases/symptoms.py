"""What keeps nodes from coming, in words that are the same on whatever node it happens.

What fails in the same way on a second node, or in a second lease, is no fault of the nodes: a
container image, an interpreter or a module that is not there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from headrace.batch.jobs import end_of
from headrace.files.layout import LeaseFolder
from headrace.leases import preflight
from headrace.record import Record

_LOG_BYTES = 65_536
_OF_ANY_NODE = ("container", "tiers")
"""Checks of the pre-flight whose problem may be a mistake in the site; others are a node's own."""

_TELLING = re.compile(
    r"No such file or directory|command not found|Permission denied|Exec format error"
    r"|cannot execute|No module named|Unable to locate a modulefile|(?:could|can)(?:'t| ?not) open"
)
_NOISE = re.compile(r"\bkill: \(")
_LEADER = re.compile(r"^.*?(?:error:|FATAL:|line \d+:)\s*")
_PROCESS = re.compile(r"\[\d+\]")


class Symptom(Record):
    """What kept a lease's nodes from coming."""

    words: str
    """What was said, without what differs from node to node."""
    num_nodes: int
    """On how many of its nodes it was said."""


def symptom_of(folder: LeaseFolder) -> Symptom | None:
    """What kept the nodes of a lease from coming; None when they came, or nothing told why."""
    if folder.info.exists():
        return None
    found = [
        f"{check.name}: {_plain(check.problem)}"
        for report in preflight.reports(folder)
        for check in report.checks
        if check.problem and check.name in _OF_ANY_NODE
    ]
    if not found and not folder.host.exists():
        found = telling_lines(end_of(folder.log, _LOG_BYTES))
    return most_common(found)


def telling_lines(log: str) -> list[str]:
    """Lines of a job's log that tell what was missing, without what differs from node to node."""
    lines = [line for line in log.splitlines() if _TELLING.search(line) and not _NOISE.search(line)]
    return [_plain(_LEADER.sub("", line)) for line in lines]


def most_common(found: Iterable[str]) -> Symptom | None:
    """What is said on most nodes; the first of several."""
    counted = Counter(found).most_common(1)
    return Symptom(words=counted[0][0], num_nodes=counted[0][1]) if counted else None


def _plain(text: str) -> str:
    return _PROCESS.sub("", text).strip()
