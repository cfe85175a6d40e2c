"""What in EC2 carries headrace's tags, whoever started it; and its end.

An instance ends with its network interfaces and its spot request, and with its volumes unless its
image, or a user, says otherwise: volumes that no instance has are looked for as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

from headrace.record import Record
from headrace_ec2.api import Ec2Api, Ec2Error, Json, tags_of
from headrace_ec2.requests import ENDS_AT, OWNER
from headrace_ec2.states import ends_at

_OWN = (
    {"Name": "tag:Name", "Values": ["headrace-*"]},
    {"Name": "tag-key", "Values": [ENDS_AT]},
)
_COSTS = {
    "Name": "instance-state-name",
    "Values": ["pending", "running", "stopping", "stopped"],  # of these, the volumes
}
_LEFT = {"Name": "status", "Values": ["available"]}


class Resource(Record):
    """Something in EC2 that headrace has started, or that was left of it."""

    id: str
    kind: Literal["instance", "volume"]
    type: str
    market: str = ""
    """`spot` or `on-demand`; empty for what is no instance."""
    zone: str
    state: str
    """In EC2's words."""
    job: str
    """Name of the job that it belongs to."""
    owner: str
    """Who started it: user and machine."""
    since: float | None
    """Since when it is there, seconds since the epoch; null when EC2 does not tell."""
    ends_at: float | None
    """When it should end at the latest, seconds since the epoch."""


Seen = TypeVar("Seen", bound=Resource)


def instances(api: Ec2Api) -> Iterator[Resource]:
    """Instances that cost something."""
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
    """Volumes that no instance has."""
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


LOOKS: tuple[Callable[[Ec2Api], Iterator[Resource]], ...] = (instances, volumes)


def end(api: Ec2Api, found: Sequence[Seen]) -> Iterator[tuple[Seen, str]]:
    """End what was found in one place; gives each, and why EC2 refused, empty when it did not.

    Raises:
        BatchError: EC2 does not answer.
    """
    running = [each for each in found if each.kind == "instance"]
    yield from _terminate(api, running) if running else ()
    for each in found:
        if each.kind == "volume":
            yield each, _refusal(api, "delete_volume", VolumeId=each.id)


def _terminate(api: Ec2Api, running: Sequence[Seen]) -> Iterator[tuple[Seen, str]]:
    """All at once; where EC2 refuses that for the sake of one, one after the other."""
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


def _resource(described: Json, **seen: Any) -> Resource:
    tags = tags_of(described)
    return Resource(**seen, job=tags["Name"], owner=tags.get(OWNER, ""), ends_at=ends_at(described))
