"""What PBS tells of its queues, for the choice of a time limit and for the check of a site.

Sources: qstat(1B), pbs_queue_attributes(7B) and pbs_server_attributes(7B) of OpenPBS.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.batch.asking import answered, said
from headrace.batch.commands import Commands
from headrace.batch.queue_facts import QueueFacts, clock_s, longest_s
from headrace.errors import BatchError

_SILENT = (
    "Is the server up? `batch.config` must name the pbs.conf of this cluster. Torque, which has "
    "no JSON, is not supported."
)

Attributes = Mapping[str, Any]
"""Attributes of a queue or the server, from the JSON of `qstat`."""


def ask_server(commands: Commands) -> Attributes:
    """What PBS tells of its server.

    Raises:
        BatchError: It does not answer.
    """
    return next(iter(_ask(commands, "-B", "Server").values()), {})


def ask_queues(commands: Commands) -> dict[str, Attributes]:
    """What PBS tells of its queues, by their names.

    Raises:
        BatchError: It does not answer.
    """
    return _ask(commands, "-Q", "Queue")


def queue_of(partition: str | None, server: Attributes) -> str:
    """The queue that a job goes to; empty when it names none and there is no default one."""
    return (partition or server.get("default_queue") or "").partition("@")[0]


def longest_job_s(commands: Commands, partition: str | None) -> float | None:
    """Longest time that PBS gives a job, seconds; None for no limit, or a queue that is not there.

    Args:
        commands: Runs its commands.
        partition: The queue; None for the default one.

    Raises:
        BatchError: It does not answer.
    """
    server, queues = ask_server(commands), ask_queues(commands)
    return limit_s(queue_of(partition, server), queues, server)


def facts_of(name: str, queues: Mapping[str, Attributes], server: Attributes) -> QueueFacts:
    """A queue out of the answers of `qstat -Q` and `qstat -B`; pure.

    Args:
        name: Name of the queue.
        queues: Attributes of all queues, by their names.
        server: Attributes of the server.
    """
    queue = queues[name]
    most, least = queue.get("resources_max", {}), queue.get("resources_min", {})
    return QueueFacts(
        name=name,
        refuses="" if queue.get("enabled") == "True" else "it is not enabled",
        holds="" if queue.get("started") == "True" else "it is not started",
        limit_s=limit_s(name, queues, server),
        most_cpus=int(most["ncpus"]) if "ncpus" in most else None,
        most_nodes=int(most["nodect"]) if "nodect" in most else None,
        least_nodes=int(least.get("nodect", 1)),
    )


def limit_s(name: str, queues: Mapping[str, Attributes], server: Attributes) -> float | None:
    """Longest time of a job in a queue, seconds; None for no limit.

    The server's limit holds where the queue has none. A queue that routes its jobs on gives as
    much as the most generous of its destinations, and no more than its own limit.

    Args:
        name: Name of the queue.
        queues: Attributes of all queues, by their names.
        server: Attributes of the server.
    """
    queue = queues.get(name, {})
    own = _walltime_s(queue) if _walltime_s(queue) is not None else _walltime_s(server)
    routed = None
    if queue.get("queue_type") == "Route":
        ahead = {key: each for key, each in queues.items() if key != name}  # no way in a circle
        ways = str(queue.get("route_destinations", "")).split(",")
        names = [each.partition("@")[0].strip() for each in ways]
        routed = longest_s(limit_s(each, ahead, server) for each in names if each in ahead)
    return min((each for each in (own, routed) if each is not None), default=None)


def _walltime_s(attributes: Attributes) -> float | None:
    walltime = attributes.get("resources_max", {}).get("walltime")
    return None if walltime is None else clock_s(str(walltime))


def _ask(commands: Commands, what: str, key: str) -> dict[str, Attributes]:
    text = answered(commands, ("qstat", what, "-f", "-F", "json"), "PBS", _SILENT)
    try:
        found: dict[str, Attributes] = json.loads(text, strict=False).get(key, {})
    except ValueError as error:
        told = f"PBS does not answer qstat {what} in JSON: {said(str(error))}"
        raise BatchError(told, _SILENT) from error
    return found
