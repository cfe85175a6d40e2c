"""Resources in EC2 with headrace's tags, of any user; and their end.

An instance ends with its network interfaces and its spot request, and with its volumes unless its
image, or a user, sets otherwise: volumes without an instance are listed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from headrace.record import Record
from headrace_ec2.api import Ec2Api, Ec2Error, Json, tags_of
from headrace_ec2.requests import ENDS_AT, OWNER
from headrace_ec2.states import ends_at

_OWN = ({"Name": "tag:Name", "Values": ["headrace-*"]}, {"Name": "tag-key", "Values": [ENDS_AT]})
_COSTS = {
    "Name": "instance-state-name",
    "Values": ["pending", "running", "stopping", "stopped"],  # of these, the volumes
}
_LEFT = {"Name": "status", "Values": ["available"]}


class Resource(Record):
    """A resource in EC2 that headrace has started, or that is left from one."""

    id: str
    kind: Literal["instance", "volume"]
    type: str
    market: str = ""
    """`spot` or `on-demand`; empty for other than instances."""
    zone: str
    state: str
    """EC2's name of the state."""
    job: str
    """Name of its job."""
    owner: str
    """Its requester: user and machine."""
    since: float | None
    """Since when it exists, seconds since the epoch; null if EC2 does not report it."""
    ends_at: float | None
    """Its latest intended end, seconds since the epoch."""


Found = TypeVar("Found", bound=Resource)


def instances(api: Ec2Api) -> Iterator[Resource]:
    """Yield instances that cost money."""
    for page in api.pages("describe_instances", "Reservations", Filters=[*_OWN, _COSTS]):
        for each in page["Instances"]:
            yield _resource(
                each,
                id=each["InstanceId"],
                kind="instance",
                type=each["InstanceType"],
                market=each.get("InstanceLifecycle", "on-demand"),
                zone=each["Placement"]["AvailabilityZone"],
                state=each["State"]["Name"],
                since=each["LaunchTime"].timestamp(),
            )


def volumes(api: Ec2Api) -> Iterator[Resource]:
    """Yield volumes without an instance."""
    for each in api.pages("describe_volumes", "Volumes", Filters=[*_OWN, _LEFT]):
        yield _resource(
            each,
            id=each["VolumeId"],
            kind="volume",
            type=f"{each['VolumeType']}, {each['Size']} GiB",
            zone=each["AvailabilityZone"],
            state=each["State"],
            since=each["CreateTime"].timestamp(),
        )


LISTINGS: tuple[Callable[[Ec2Api], Iterator[Resource]], ...] = (instances, volumes)


def end(api: Ec2Api, found: Sequence[Found]) -> Iterator[tuple[Found, str]]:
    """End resources of a region; yield each and its refusal, if any; raise BatchError if silent."""
    running = [each for each in found if each.kind == "instance"]
    yield from _terminate(api, running) if running else ()
    for each in found:
        if each.kind == "volume":
            yield each, _refusal(api, "delete_volume", VolumeId=each.id)


def _terminate(api: Ec2Api, running: Sequence[Found]) -> Iterator[tuple[Found, str]]:
    """Terminate all in one request; if EC2 refuses it because of one instance, one by one."""
    try:
        api.call("terminate_instances", InstanceIds=[each.id for each in running])
    except Ec2Error:
        for each in running:
            yield each, _refusal(api, "terminate_instances", InstanceIds=[each.id])
        return
    yield from ((each, "") for each in running)


def _refusal(api: Ec2Api, operation: str, **request: Any) -> str:
    try:
        api.call(operation, **request)
    except Ec2Error as error:
        return "" if error.code.endswith(".NotFound") else error.what
    return ""


def _resource(described: Json, **found: Any) -> Resource:
    tags = tags_of(described)
    own = {"job": tags["Name"], "owner": tags.get(OWNER, "")}
    return Resource(**found, **own, ends_at=ends_at(described))
