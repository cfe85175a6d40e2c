"""Requests to EC2: each holds in botocore's model of the API."""

from __future__ import annotations

import inspect
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headrace.batch.job_records import JobSpec
from headrace.batch.system import render
from headrace_ec2.backend import Ec2
from headrace_ec2.options import Ec2Options
from headrace_ec2.requests import (
    MOST_USER_DATA_BYTES,
    Offer,
    offers,
    run_instances,
    tags,
    with_tags,
)
from support.factories import job_spec

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


_STORE_JOB = job_spec(log="/log")
_STORE = "Amazon EC2 NVMe Instance Storage"
_EBS = "Amazon Elastic Block Store"
_SHIMS = {
    "lsblk": """if [ "$1" = -dnpo ]; then cat "$SHIMS/disks"; else cat "$SHIMS/parts$3"; fi""",
    "blkid": """[ -e "$SHIMS/empty$2" ] && exit 2; echo "$2: TYPE=ext4" """,
    "mountpoint": """grep -q "^mount .* $2$" "$SHIMS/log" """,
    "systemctl": """[ -e "$SHIMS/dlami" ] || exit 1
        [ "$1" = cat ] || echo "systemctl $*" >> "$SHIMS/log" """,
    "mdadm": """echo "mdadm $*" >> "$SHIMS/log" """,
    "mkfs.ext4": """echo "mkfs.ext4 $*" >> "$SHIMS/log"; [ ! -e "$SHIMS/broken" ]""",
    "mount": """echo "mount $*" >> "$SHIMS/log" """,
}


@dataclass
class Machine:
    """What looks like an instance with disks to the user data."""

    folder: Path
    replaced: tuple[str, ...] = tuple(_SHIMS)

    @property
    def store(self) -> Path:
        """Where the instance store is to be mounted."""
        return self.folder / "mnt" / "nvme"

    def disk(self, name: str, model: str = _STORE, *, empty: bool = True, parts: int = 0) -> None:
        """Add a disk."""
        with (self.folder / "disks").open("a") as file:
            file.write(f"{name} {model}   \n")
        tree = "".join(f"{name}p{number}\n" for number in range(parts))
        self._put(f"parts{name}", f"{name}\n{tree}")
        if empty:
            self._put(f"empty{name}", "")

    def boot(self) -> subprocess.CompletedProcess[str]:
        """Run the part of the user data."""
        for name in self.replaced:
            self._put(f"bin/{name}", f"#!/bin/bash\n{_SHIMS[name]}\n").chmod(0o755)
        self._put("log", (self.folder / "log").read_text() if self._has("log") else "")
        options = Ec2Options(
            region="x", image="ami-1", instance_types=("g5.xlarge",), instance_store=str(self.store)
        )
        text = "set -e\n" + render(
            "instance_store", _STORE_JOB, beside=inspect.getfile(Ec2), options=options
        )
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}:/usr/sbin"
        return subprocess.run(
            ["bash", "-c", text],
            env={"PATH": path, "SHIMS": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )

    def log(self) -> list[str]:
        """What was done to disks."""
        return (self.folder / "log").read_text().splitlines()

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _put(self, name: str, text: str) -> Path:
        file = Path(f"{self.folder}/{name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An instance with its root volume, formatted, and another EBS volume, empty."""
    made = Machine(tmp_path)
    made.disk("/dev/nvme0n1", _EBS, empty=False, parts=2)
    made.disk("/dev/nvme1n1", _EBS)
    return made


def test_one_device_is_formatted_and_mounted_for_all_users_once(machine: Machine):
    machine.disk("/dev/nvme2n1")
    for _ in range(2):
        assert machine.boot().returncode == 0
        assert machine.log() == [
            "mkfs.ext4 -q -m 0 -E nodiscard /dev/nvme2n1",
            f"mount -o noatime /dev/nvme2n1 {machine.store}",
        ]
    assert machine.store.stat().st_mode & 0o7777 == 0o1777


def test_several_devices_are_striped(machine: Machine):
    machine.disk("/dev/nvme2n1")
    machine.disk("/dev/nvme3n1")
    assert machine.boot().returncode == 0
    assert machine.log() == [
        "mdadm --create /dev/md0 --run --level=0 --raid-devices=2 /dev/nvme2n1 /dev/nvme3n1",
        "mkfs.ext4 -q -m 0 -E nodiscard /dev/md0",
        f"mount -o noatime /dev/md0 {machine.store}",
    ]


def test_nothing_is_touched_that_is_used_or_no_instance_store(machine: Machine):
    machine.disk("/dev/nvme2n1", empty=False)
    machine.disk("/dev/nvme3n1", parts=1)
    assert machine.boot().returncode == 0
    assert machine.log() == []
    assert not machine.store.exists()


def test_an_image_that_mounts_its_own_may_do_so_first(machine: Machine):
    machine.disk("/dev/nvme2n1", empty=False)
    (machine.folder / "dlami").touch()
    assert machine.boot().returncode == 0
    assert machine.log() == ["systemctl start dlami-nvme"]


def test_a_device_that_cannot_be_formatted_ends_the_node(machine: Machine):
    machine.disk("/dev/nvme2n1")
    (machine.folder / "broken").touch()
    assert machine.boot().returncode != 0
    assert len(machine.log()) == 1


def test_what_was_formatted_once_is_not_touched_again(tmp_path: Path):
    """The tools that look and format are the real ones, and a file is the device."""
    machine = Machine(tmp_path, ("lsblk", "systemctl", "mountpoint", "mount"))
    device = tmp_path / "device"
    with device.open("wb") as file:
        file.truncate(16 * 2**20)
    machine.disk(str(device))
    assert machine.boot().returncode == 0
    assert machine.log() == [f"mount -o noatime {device} {machine.store}"]
    made = device.read_bytes()
    (tmp_path / "log").unlink()  # as when it is not mounted any more
    again = machine.boot()
    assert 'TYPE="ext4"' in again.stdout
    assert machine.log() == []
    assert device.read_bytes() == made


def test_it_comes_before_the_prologue_and_there_is_room_for_it():
    options = {"region": "x", "image": "ami-1", "instance_types": ("g5.xlarge",)}
    job = _STORE_JOB.model_copy(update={"prologue": ("ls /mnt/nvme",)})
    script = Ec2(Ec2Options(**options, instance_store="/mnt/nvme")).render(job)
    lines = script.splitlines()
    assert lines.index("store=/mnt/nvme") < lines.index("ls /mnt/nvme")
    assert len(script) < MOST_USER_DATA_BYTES / 3
    assert "lsblk" not in Ec2(Ec2Options(**options)).render(job)
