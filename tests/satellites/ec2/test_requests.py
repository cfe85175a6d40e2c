"""Requests to EC2: each holds in botocore's model of the API."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import pytest

from headrace.batch.job_records import JobSpec
from headrace_ec2.backend import Ec2
from headrace_ec2.options import Ec2Options
from headrace_ec2.requests import Offer, offers, run_instances, tags, with_tags

_JOB = JobSpec(
    name="headrace-run-gpu-1-0a1b2c3d",
    command=("python3", "-m", "headrace.clusters.member", "/shared/it's here"),
    nodes=2,
    cpus_per_node=4,
    time_limit_s=3601.0,
    folder="/shared/it's here",
    log="/shared/it's here/host.log",
    heartbeat="/shared/it's here/heartbeat",
    silence_s=140.0,
    environment={"HEADRACE_LEASE_ID": "run-gpu-1"},
    prologue=("mount -t nfs4 fs-1:/ /shared",),
    epilogue=("umount /shared",),
)


def _options(**changes: Any) -> Ec2Options:
    least = {"region": "us-east-1", "image": "ami-1", "instance_types": ["g5.xlarge"]}
    return Ec2Options(**{**least, **changes})


@cache
def _shape() -> Any:
    import botocore.session

    model = botocore.session.get_session().get_service_model("ec2")
    return model.operation_model("RunInstances").input_shape


def _request(**changes: Any) -> dict[str, Any]:
    import botocore.validate

    options = _options(**changes)
    request = run_instances(_JOB, options, offers(options)[0], "ami-1", "#!/bin/bash")
    request = with_tags(request, tags(_JOB, options, (), "me@here", 1.7e9))
    botocore.validate.validate_parameters(request, _shape())
    return request


def test_all_nodes_or_none_and_none_that_stays():
    """pains 15, 22."""
    request = _request()
    assert (request["MinCount"], request["MaxCount"]) == (2, 2)
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert {each["ResourceType"] for each in request["TagSpecifications"]} == {
        "instance", "volume", "network-interface"}  # fmt: skip
    told = {tag["Key"]: tag["Value"] for tag in request["TagSpecifications"][0]["Tags"]}
    assert told == {
        "Name": _JOB.name,
        "headrace:owner": "me@here",
        "headrace:ends-at": "2023-11-14T23:15:20Z",  # 62 minutes later
        "headrace:log": _JOB.log,
    }
    assert not {"KeyName", "SubnetId", "InstanceMarketOptions", "Placement"} & request.keys()


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"key_name": "mine"}, {"KeyName": "mine"}),
        ({"security_groups": ["sg-1"]}, {"SecurityGroupIds": ["sg-1"]}),
        ({"instance_profile": "nodes"}, {"IamInstanceProfile": {"Name": "nodes"}}),
        ({"placement_group": "close"}, {"Placement": {"GroupName": "close"}}),
        (
            {"capacity_reservation": "cr-1"},
            {
                "CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
                }
            },
        ),
        (
            {"capacity_reservation": "cr-1", "markets": ["capacity-block", "spot"]},
            {
                "InstanceMarketOptions": {"MarketType": "capacity-block"},
                "CapacityReservationSpecification": {
                    "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
                },
            },
        ),
        (
            {"capacity_reservation": "cr-1", "markets": ["spot", "on-demand"]},
            {"CapacityReservationSpecification": None},  # of the first offer, which is spot
        ),
        (
            {"markets": ["spot"], "max_price": 0.5},
            {
                "InstanceMarketOptions": {
                    "MarketType": "spot",
                    "SpotOptions": {
                        "SpotInstanceType": "one-time",
                        "InstanceInterruptionBehavior": "terminate",
                        "MaxPrice": "0.5",
                    },
                }
            },
        ),
        (
            {"disk": "200GiB", "disk_iops": 6000, "disk_throughput": "500MiB"},
            {
                "BlockDeviceMappings": [
                    {
                        "DeviceName": "/dev/xvda",
                        "Ebs": {
                            "VolumeType": "gp3",
                            "DeleteOnTermination": True,
                            "VolumeSize": 200,
                            "Iops": 6000,
                            "Throughput": 500,
                        },
                    }
                ]
            },
        ),
        (
            {"efa": True, "subnets": ["subnet-1"], "security_groups": ["sg-1"]},
            {
                "NetworkInterfaces": [
                    {
                        "DeviceIndex": 0,
                        "InterfaceType": "efa",
                        "Groups": ["sg-1"],
                        "SubnetId": "subnet-1",
                        "DeleteOnTermination": True,
                    }
                ]
            },
        ),
    ],
)
def test_what_a_role_asks_for(changes: dict[str, Any], part: dict[str, Any]):
    request = _request(**changes)
    assert {key: request.get(key) for key in part} == part


def test_offers_come_by_type_then_market_then_place():
    options = _options(
        instance_types=["g5.xlarge", "g6.xlarge"],
        markets=["spot", "on-demand"],
        subnets=["subnet-a", "subnet-b"],
    )
    told = [str(each) for each in offers(options)]
    assert told[:3] == [
        "g5.xlarge (spot) in subnet-a",
        "g5.xlarge (spot) in subnet-b",
        "g5.xlarge in subnet-a",
    ]
    assert told[4] == "g6.xlarge (spot) in subnet-a"


def test_a_job_has_another_token_with_another_offer():
    options = _options()
    two = [Offer(instance_type=name, market="spot", subnet=None) for name in ("a", "b")]
    tokens = [run_instances(_JOB, options, each, "i", "")["ClientToken"] for each in (*two, two[0])]
    assert tokens[0] == tokens[2] != tokens[1]
    assert all(len(each) <= 64 for each in tokens)


@pytest.mark.parametrize("user", [None, "me"])
def test_what_ends_an_instance_comes_first(user: str | None):
    script = Ec2(_options(user=user)).render(_JOB)
    lines = script.splitlines()
    assert lines[:2] == ["#!/bin/bash", "shutdown -P +62"]
    assert lines.index("trap end EXIT") < lines.index("mount -t nfs4 fs-1:/ /shared")
    assert "timeout --kill-after=30 3601.0 bash -c" in lines[-1]
    assert ("runuser -u me -- env HOME=~me timeout" in lines[-1]) is (user is not None)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, (False, False)),
        ({"markets": ["spot"]}, (True, True)),
        ({"markets": ["spot"], "rebalance": "leave"}, (True, False)),
    ],
)
def test_instances_look_at_what_ec2_tells_those_that_are_spot(
    changes: dict[str, Any], asks: tuple[bool, bool]
):
    script = Ec2(_options(**changes)).render(_JOB.model_copy(update={"at_risk": "/shared/at-risk"}))
    seen = [part in script for part in ("recommendations/rebalance", "/shared/at-risk")]
    assert tuple(seen) == asks
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
