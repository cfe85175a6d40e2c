"""A role of a site against the real PBS: what is wrong, and what to do about it.

Sources: qstat(1B) and pbs_queue_attributes(7B) of OpenPBS.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headrace.errors import BatchError
from headrace.leases.batch.asking import programs, said
from headrace.leases.batch.commands import Commands
from headrace.leases.batch.findings import Finding, Grade, ok, warn
from headrace.leases.batch.jobs import JobSpec
from headrace.leases.batch.queue_check import QueueFacts, chosen, clock_s, judge_queue

_NEEDED = dict.fromkeys(("qsub", "qstat", "qselect", "qdel"), ("--version",))
_ADVICE = "Run headrace where the commands of PBS are (a login node), and have them on PATH."
_SILENT = (
    "Is the server up? `batch.config` must name the pbs.conf of this cluster. Torque, which has "
    "no JSON, is not supported."
)
_NO_HISTORY = (
    "An ended job then counts as lost, whatever it died of: ask the administrators for "
    "`job_history_enable`."
)


def findings(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    """What a look at PBS finds for a job; stops where nothing more can be learnt.

    Args:
        commands: Runs its commands.
        spec: The job as headrace would submit it.

    Raises:
        BatchError: The server does not answer.
    """
    found = list(programs(commands, _NEEDED, _ADVICE))
    yield from found
    if any(each.grade is Grade.FAIL for each in found):
        return
    server = next(iter(_ask(commands, "-B", "Server").values()), {})
    if server.get("job_history_enable") == "True":
        yield ok("accounting", "the server keeps a history")
    else:
        yield warn("accounting", "the server keeps no history of jobs", _NO_HISTORY)
    queues = _ask(commands, "-Q", "Queue")
    asked = spec.partition or server.get("default_queue") or ""
    name = chosen(asked.partition("@")[0] or None, tuple(queues))
    if isinstance(name, Finding):
        yield name
    else:
        yield from judge_queue(facts_of(name, queues[name]), spec)


def facts_of(name: str, queue: dict[str, Any]) -> QueueFacts:
    """A queue out of the answer of `qstat -Q -f -F json`.

    Args:
        name: Name of the queue.
        queue: Its attributes.
    """
    most, least = queue.get("resources_max", {}), queue.get("resources_min", {})
    return QueueFacts(
        name=name,
        refuses="" if queue.get("enabled") == "True" else "it is not enabled",
        holds="" if queue.get("started") == "True" else "it is not started",
        limit_s=clock_s(str(most["walltime"])) if "walltime" in most else None,
        most_cpus=int(most["ncpus"]) if "ncpus" in most else None,
        most_nodes=int(most["nodect"]) if "nodect" in most else None,
        least_nodes=int(least.get("nodect", 1)),
    )


def _ask(commands: Commands, what: str, key: str) -> dict[str, dict[str, Any]]:
    answer = commands.run(("qstat", what, "-f", "-F", "json"))
    if answer.code != 0:
        raise BatchError(f"PBS does not answer qstat {what}: {said(answer.error)}", _SILENT)
    try:
        found: dict[str, dict[str, Any]] = json.loads(answer.output, strict=False).get(key, {})
    except ValueError as error:
        raise BatchError(f"PBS does not answer qstat {what} in JSON: {error}", _SILENT) from error
    return found
