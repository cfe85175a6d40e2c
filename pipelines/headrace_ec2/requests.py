"""Requests to EC2 for a job: one for all of its nodes; pure.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from typing import Any

from headrace.batch.job_records import JobSpec
from headrace.record import Record
from headrace_ec2.options import Ec2Options, Market

ENDS_AT = "headrace:ends-at"
"""Tag of instances: their latest end, in UTC."""

OWNER = "headrace:owner"
"""Tag: their requester, user and machine."""

LOG = "headrace:log"
"""Tag: log of the job, which all nodes see; each node writes how it ended beside it."""

INSTEAD_OF = "headrace:instead-of"
"""Tag: offers without capacity, for users."""

ASKED_AT = "headrace:asked-at"
"""Tag: when the job was first requested, seconds since the epoch."""

MOST_USER_DATA_BYTES = 16 * 1024
"""Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""

_TAG_LENGTH = 256
_MEBIBYTE = 2**20


class Offer(Record):
    """One way to get the nodes of a job."""

    instance_type: str
    market: Market
    subnet: str | None
    """Null for the default subnet."""

    def __str__(self) -> str:
        where = f" in {self.subnet}" if self.subnet else ""
        return f"{self.what}{where}"

    @property
    def what(self) -> str:
        """Type and market, as users know them."""
        return kind_of(self.instance_type, self.market)


def kind_of(instance_type: str, market: str) -> str:
    """Return a type of instances and its market, as `g5.xlarge (spot)`."""
    return instance_type if market == "on-demand" else f"{instance_type} ({market})"


def offers(options: Ec2Options) -> tuple[Offer, ...]:
    """Return all offers that a role allows, the preferred ones first."""
    return tuple(
        Offer(instance_type=instance_type, market=market, subnet=subnet)
        for instance_type in options.instance_types
        for market in options.markets
        for subnet in options.subnets or (None,)
    )


def run_instances(
    spec: JobSpec, options: Ec2Options, offer: Offer, image: str, user_data: str
) -> dict[str, Any]:
    """Return the request that starts all nodes of a job, or none.

    `image` is its id, or `resolve:ssm:NAME`; `user_data` is the program of each instance.
    """
    request: dict[str, Any] = {
        # EC2 starts the same job from the same offer only once, even if the request is repeated
        "ClientToken": hashlib.sha256(f"{spec.name} {offer}".encode()).hexdigest(),
        "ImageId": image,
        "InstanceType": offer.instance_type,
        "MinCount": spec.nodes,
        "MaxCount": spec.nodes,
        "UserData": user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "KeyName": options.key_name,
        "BlockDeviceMappings": _disks(options),
        **_network(options, offer),
        **_placement(options, offer),
    }
    if options.instance_profile:
        request["IamInstanceProfile"] = {"Name": options.instance_profile}
    return {key: value for key, value in request.items() if value}


def last_minute(spec: JobSpec) -> int:
    """Return the minutes after which an instance shuts down in any case; its work ends before."""
    return math.ceil(spec.time_limit_s / 60) + 1


def with_tags(request: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    """Return the request with tags for the instances and all their resources."""
    listed = [{"Key": key, "Value": value[:_TAG_LENGTH]} for key, value in tags.items()]
    kinds = ("instance", "volume", "network-interface")
    return {**request, "TagSpecifications": [{"ResourceType": kind, "Tags": listed}
                                             for kind in kinds]}  # fmt: skip


def tags(
    spec: JobSpec, options: Ec2Options, refused: Sequence[str], owner: str, now: float
) -> dict[str, str]:
    """Return tags of a job: its owner, its latest end, and why it is not a preferred offer.

    There was no capacity for the offers in `refused`; `now` is seconds since the epoch.
    """
    ends_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + 60 * last_minute(spec)))
    own = {"Name": spec.name, OWNER: owner, ENDS_AT: ends_at}
    if len(spec.log) <= _TAG_LENGTH:
        own[LOG] = spec.log
    if refused:
        own[INSTEAD_OF] = "; ".join(refused)
    return {**options.tags, **own}


def _network(options: Ec2Options, offer: Offer) -> dict[str, Any]:
    groups = list(options.security_groups)
    if not options.efa:
        return {"SubnetId": offer.subnet, "SecurityGroupIds": groups}
    adapter: dict[str, Any] = {"DeviceIndex": 0, "InterfaceType": "efa", "Groups": groups}
    if offer.subnet:
        adapter["SubnetId"] = offer.subnet
    return {"NetworkInterfaces": [{**adapter, "DeleteOnTermination": True}]}


def _placement(options: Ec2Options, offer: Offer) -> dict[str, Any]:
    request: dict[str, Any] = {}
    if options.placement_group:
        request["Placement"] = {"GroupName": options.placement_group}
    if options.capacity_reservation and offer.market == options.reserved_market:
        target = {"CapacityReservationId": options.capacity_reservation}
        request["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    if offer.market == "capacity-block":
        request["InstanceMarketOptions"] = {"MarketType": offer.market}
    elif offer.market == "spot":
        spot: dict[str, Any] = {"SpotInstanceType": "one-time"}
        spot["InstanceInterruptionBehavior"] = "terminate"
        if options.max_price is not None:
            spot["MaxPrice"] = f"{options.max_price:g}"
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    return request


def _disks(options: Ec2Options) -> list[dict[str, Any]]:
    if options.disk is None:
        return []
    volume: dict[str, Any] = {"VolumeType": "gp3", "DeleteOnTermination": True}
    volume["VolumeSize"] = math.ceil(options.disk / 2**30)
    if options.disk_iops is not None:
        volume["Iops"] = options.disk_iops
    if options.disk_throughput is not None:
        volume["Throughput"] = math.ceil(options.disk_throughput / _MEBIBYTE)
    return [{"DeviceName": options.root_device, "Ebs": volume}]
