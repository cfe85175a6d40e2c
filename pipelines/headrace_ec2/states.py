"""How jobs on EC2 stand, from what EC2 tells of their instances; instances that hang.

Sources: "Troubleshoot instance termination", "StateReason" and
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
"""

from __future__ import annotations

import calendar
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from headrace.batch.job_records import JobState, JobStatus
from headrace.errors import BatchError
from headrace_ec2.api import Ec2Api, Json, tags_of
from headrace_ec2.requests import ENDS_AT, INSTEAD_OF, kind_of

logger = logging.getLogger(__name__)

HUNG_AFTER_S = 300.0
"""An instance is given up when a check has failed for this time: shorter failures pass by."""

_ROUND_S = 60.0  # as often as EC2 checks
_IDS_AT_ONCE = 100
_CHECKS = {"SystemStatus": "system", "InstanceStatus": "instance"}

NO_CAPACITY = "Server.InsufficientInstanceCapacity"
"""Why an instance ended that was asked for and never came."""

BY_ITSELF = "Client.InstanceInitiatedShutdown"
"""Why an instance ended that shut itself down."""

TIME_IS_OVER = "124"
"""Exit code of a node whose time was over."""

_ENDED = {"shutting-down", "terminated"}
"""States of instances that have ended or are just ending: nothing brings them back."""

_STOPPED = {"stopping", "stopped"}
"""States of instances that do nothing, and cost their volumes until somebody ends them."""

_NONE: Mapping[str, str] = {}

_ENDS = {
    "Server.SpotInstanceTermination": JobState.PREEMPTED,
    "Server.SpotInstanceShutdown": JobState.PREEMPTED,
    NO_CAPACITY: JobState.PREEMPTED,  # its turn comes again
    "Server.InternalError": JobState.NODE_FAILED,
    "Server.ScheduledStop": JobState.NODE_FAILED,
    "Client.UserInitiatedShutdown": JobState.CANCELLED,
}
_WORST_FIRST = (
    JobState.PREEMPTED,
    JobState.NODE_FAILED,
    JobState.TIMED_OUT,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.UNKNOWN,
    JobState.COMPLETED,
)
"""Which end of a node tells how the job ended: the others follow it."""

_TAKEN = "taken away: "
"""How the words of a node begin that EC2 has told to be interrupted."""

Words = Callable[[Json], str | None]
"""What a node told of its own end: an exit code, or why; None when it told nothing."""


def has_ended(instance: Json) -> bool:
    """Whether an instance costs nothing any more."""
    return instance["State"]["Name"] in _ENDED


def reason_code(instance: Json) -> str:
    """EC2's name for why an instance is in its state; empty when it gives none."""
    return str(instance.get("StateReason", {}).get("Code", ""))


def status_of(
    name: str, instances: Sequence[Json], last_words: Words, hung: Mapping[str, str] = _NONE
) -> JobStatus:
    """How a job stands; it has ended when all of its nodes have, or one will never work again.

    `last_words` is asked for nodes that live, or have shut themselves down; `hung` are those that
    hang, and why they are thought to.
    """
    nodes = sorted(instances, key=lambda each: each.get("AmiLaunchIndex", 0))
    useless = {each["InstanceId"]: end for each in nodes if (end := _useless(each, hung))}
    ends = {each["InstanceId"]: end_of(each, last_words) for each in nodes if has_ended(each)}
    ends |= useless
    words = {each["InstanceId"]: last_words(each) or "" for each in nodes if not has_ended(each)}
    taken = {node: told for node, told in words.items() if told.startswith(_TAKEN)}
    state, reason = _living(nodes, ends, taken)
    if useless or len(ends) == len(nodes):
        first = min(ends, key=lambda node: _WORST_FIRST.index(ends[node][0]))
        state, why = ends[first]
        reason = f"{first}: {why}" if why and len(nodes) > 1 else why
    failed = [node for node, end in ends.items() if end[0] is JobState.NODE_FAILED]
    return JobStatus(
        job_id=name,
        state=state,
        reason=reason,
        nodes=tuple(each["InstanceId"] for each in nodes),
        failed_nodes=tuple(failed),
        is_taken=bool(taken),
    )


def end_of(instance: Json, last_words: Words) -> tuple[JobState, str]:
    """How a node ended, and why."""
    code = reason_code(instance)
    reason = str(instance.get("StateReason", {}).get("Message", code))
    if code != BY_ITSELF:
        return _ENDS.get(code, JobState.FAILED), reason
    told = last_words(instance)
    if told is None:
        return JobState.UNKNOWN, reason
    if told.startswith(_TAKEN):
        return JobState.PREEMPTED, told
    if told == "0":
        return JobState.COMPLETED, ""
    if told == TIME_IS_OVER:
        return JobState.TIMED_OUT, "its time is over"
    return JobState.FAILED, f"exit code {told}" if told.isdecimal() else told


def _useless(instance: Json, hung: Mapping[str, str]) -> tuple[JobState, str] | None:
    """How a node counts that costs money, or did, and does no work; None for any other."""
    state, code = instance["State"]["Name"], reason_code(instance)
    if state in _STOPPED:  # by hand, or by EC2: its own shutdown terminates it
        return _ENDS.get(code, JobState.CANCELLED), f"it is {state}: {code}"
    why = hung.get(instance["InstanceId"])
    return (JobState.NODE_FAILED, why) if why else None


def ends_at(instance: Json) -> float | None:
    """When an instance ends at the latest, seconds since the epoch; None if it has no such tag."""
    try:
        told = time.strptime(tags_of(instance).get(ENDS_AT, ""), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return float(calendar.timegm(told))


def _living(
    nodes: Sequence[Json], ends: dict[str, tuple[JobState, str]], taken: dict[str, str]
) -> tuple[JobState, str]:
    states = {each["State"]["Name"] for each in nodes}
    state = JobState.PENDING if "pending" in states else JobState.RUNNING
    first = nodes[0]
    zone = first.get("Placement", {}).get("AvailabilityZone", "")
    market = first.get("InstanceLifecycle", "on-demand")
    parts = [f"{kind_of(first.get('InstanceType', ''), market)} in {zone}"]
    instead = tags_of(first).get(INSTEAD_OF)
    parts += [f"no capacity for {instead}"] if instead else []
    parts += [f"{node} is {told}" for node, told in taken.items()]
    parts += [f"{node} has ended: {why or end.value}" for node, (end, why) in ends.items()]
    return state, "; ".join(parts)


class HealthWatch:
    """Knows which instances hang; all are asked for once a minute, a hundred at each look."""

    def __init__(self, api: Ec2Api) -> None:
        self._api = api
        self._begun_s = -math.inf
        self._left: list[str] = []
        self._hung: dict[str, str] = {}

    def hung(self, instances: Iterable[Json]) -> Mapping[str, str]:
        """Instances that hang, or did when they were ended, and why they are thought to.

        Side effects: asks EC2, once at most; without an answer nothing new is known.
        """
        now_s = time.monotonic()
        if not self._left and now_s - self._begun_s >= _ROUND_S:
            self._begun_s = now_s
            self._left = [x["InstanceId"] for x in instances if x["State"]["Name"] == "running"]
        asked, self._left = self._left[:_IDS_AT_ONCE], self._left[_IDS_AT_ONCE:]
        if asked:
            try:
                told = self._api.call("describe_instance_status", InstanceIds=asked)
                self._hung |= failed_checks(told["InstanceStatuses"], time.time())
            except BatchError as error:
                logger.warning("Whether instances hang is not known: %s", error.what)
        return self._hung


def failed_checks(statuses: Iterable[Json], now: float) -> dict[str, str]:
    """Instances of which a check has failed for long at a time, and which one; pure.

    `statuses` is what DescribeInstanceStatus tells, `now` seconds since the epoch.
    """
    return {str(each["InstanceId"]): why for each in statuses for why in _failures(each, now)}


def _failures(status: Json, now: float) -> Iterator[str]:
    for key, name in _CHECKS.items():
        for check in status.get(key, {}).get("Details", ()):
            since = check.get("ImpairedSince")
            if check.get("Status") != "failed" or since is None:
                continue
            if now - since.timestamp() >= HUNG_AFTER_S:
                yield f"EC2's {name} status check has failed since {since:%H:%M} UTC"
