"""States of jobs on EC2, from EC2's reports on their instances; instances that hang.

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
"""Time after which an instance with a failed check is given up: shorter failures may pass."""

_ROUND_S = 60.0  # as often as EC2 checks
_IDS_AT_ONCE = 100
_CHECKS = {"SystemStatus": "system", "InstanceStatus": "instance"}

NO_CAPACITY = "Server.InsufficientInstanceCapacity"
"""Reason of an instance's end if EC2 had no capacity to start it."""

BY_ITSELF = "Client.InstanceInitiatedShutdown"
"""Reason of an instance's end if it shut itself down."""

TIME_IS_OVER = "124"
"""Exit code of a node whose time was over."""

_ENDED = {"shutting-down", "terminated"}
"""States of instances that have ended or are just ending: they never come back."""

_STOPPED = {"stopping", "stopped"}
"""States of instances that do nothing, but still cost their volumes until they are terminated."""

_NONE: Mapping[str, str] = {}

_ENDS = {
    "Server.SpotInstanceTermination": JobState.PREEMPTED,
    "Server.SpotInstanceShutdown": JobState.PREEMPTED,
    NO_CAPACITY: JobState.PREEMPTED,  # it is requested again
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
"""Ends of nodes by priority: the first one is the job's end, and others follow from it."""

_TAKEN = "taken away: "
"""Begin of the text that a node writes if EC2 has announced its interruption."""

Words = Callable[[Json], str | None]
"""Returns what a node wrote about its own end: an exit code, or a reason; None if nothing."""


def has_ended(instance: Json) -> bool:
    """Whether an instance has stopped to cost money."""
    return instance["State"]["Name"] in _ENDED


def reason_code(instance: Json) -> str:
    """Return EC2's code of the reason of an instance's state; empty if there is none."""
    return str(instance.get("StateReason", {}).get("Code", ""))


def status_of(
    name: str, instances: Sequence[Json], last_words: Words, hung: Mapping[str, str] = _NONE
) -> JobStatus:
    """Return the state of a job; it ends with all of its nodes, or with one that cannot work again.

    `last_words` is called for nodes that live, or have shut themselves down; `hung` are nodes that
    hang, with the reason.
    """
    nodes = sorted(instances, key=lambda each: each.get("AmiLaunchIndex", 0))
    useless = {each["InstanceId"]: end for each in nodes if (end := _useless(each, hung))}
    ends = {each["InstanceId"]: end_of(each, last_words) for each in nodes if has_ended(each)}
    ends |= useless
    words = {each["InstanceId"]: last_words(each) or "" for each in nodes if not has_ended(each)}
    taken = {node: text for node, text in words.items() if text.startswith(_TAKEN)}
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
    """Return how a node ended, and why."""
    code = reason_code(instance)
    reason = str(instance.get("StateReason", {}).get("Message", code))
    if code != BY_ITSELF:
        return _ENDS.get(code, JobState.FAILED), reason
    text = last_words(instance)
    if text is None:
        return JobState.UNKNOWN, reason
    if text.startswith(_TAKEN):
        return JobState.PREEMPTED, text
    if text == "0":
        return JobState.COMPLETED, ""
    if text == TIME_IS_OVER:
        return JobState.TIMED_OUT, "its time is over"
    return JobState.FAILED, f"exit code {text}" if text.isdecimal() else text


def _useless(instance: Json, hung: Mapping[str, str]) -> tuple[JobState, str] | None:
    """Return the end of a node that costs or did cost money, but cannot work; None for others."""
    state, code = instance["State"]["Name"], reason_code(instance)
    if state in _STOPPED:  # by a user or EC2: its own shutdown terminates it
        return _ENDS.get(code, JobState.CANCELLED), f"it is {state}: {code}"
    why = hung.get(instance["InstanceId"])
    return (JobState.NODE_FAILED, why) if why else None


def ends_at(instance: Json) -> float | None:
    """Return the latest end of an instance, seconds since the epoch; None if it has no such tag."""
    try:
        moment = time.strptime(tags_of(instance).get(ENDS_AT, ""), "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return None
    return float(calendar.timegm(moment))


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
    parts += [f"{node} is {text}" for node, text in taken.items()]
    parts += [f"{node} has ended: {why or end.value}" for node, (end, why) in ends.items()]
    return state, "; ".join(parts)


class HealthWatch:
    """Knows which instances hang; checks all once a minute, a hundred per call."""

    def __init__(self, api: Ec2Api) -> None:
        self._api = api
        self._begun_s = -math.inf
        self._left: list[str] = []
        self._hung: dict[str, str] = {}

    def hung(self, instances: Iterable[Json]) -> Mapping[str, str]:
        """Return instances that hang, or did before their end, with the reason.

        Side effects: asks EC2, at most once; without an answer the last result stays.
        """
        now_s = time.monotonic()
        if not self._left and now_s - self._begun_s >= _ROUND_S:
            self._begun_s = now_s
            self._left = [x["InstanceId"] for x in instances if x["State"]["Name"] == "running"]
        asked, self._left = self._left[:_IDS_AT_ONCE], self._left[_IDS_AT_ONCE:]
        if asked:
            try:
                answer = self._api.call("describe_instance_status", InstanceIds=asked)
                self._hung |= failed_checks(answer["InstanceStatuses"], time.time())
            except BatchError as error:
                logger.warning("It is unknown whether instances hang: %s", error.what)
        return self._hung


def failed_checks(statuses: Iterable[Json], now: float) -> dict[str, str]:
    """Return instances with a check that has failed too long by `now`, and the check's name."""
    return {str(each["InstanceId"]): why for each in statuses for why in _failures(each, now)}


def _failures(status: Json, now: float) -> Iterator[str]:
    for key, name in _CHECKS.items():
        for check in status.get(key, {}).get("Details", ()):
            since = check.get("ImpairedSince")
            if check.get("Status") != "failed" or since is None:
                continue
            if now - since.timestamp() >= HUNG_AFTER_S:
                yield f"EC2's {name} status check has failed since {since:%H:%M} UTC"
