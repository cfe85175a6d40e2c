"""Options, quotas and states of EC2: what they mean for a job."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.batch.findings import Grade
from headrace.batch.job_records import JobState, failure_class
from headrace.errors import SiteError
from headrace.recipe.load import parse
from headrace.recipe.site import Role, Site
from headrace.states import FailureClass
from headrace_ec2.api import Ec2Api
from headrace_ec2.backend import Ec2
from headrace_ec2.check import judge_quota, quota_findings, quota_name
from headrace_ec2.options import Ec2Options, Market
from headrace_ec2.states import ends_at, status_of
from support.ec2_sim import QUOTAS, Ec2Sim
from support.factories import job_spec

_LEAST: dict[str, Any] = {"region": "eu-west-1", "image": "ami-1", "instance_types": ["m5.large"]}


def test_the_least_that_a_role_says():
    role = Role(backend="ec2", ec2=_LEAST)
    assert role.own_options.markets == ("on-demand",)
    assert Role.model_validate_json(role.model_dump_json()) == role


def test_a_role_of_an_earlier_release_says_that_it_has_no_instances():
    assert Role(backend="slurm", ec2=None) == Role(backend="slurm")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"instance_types": []}, "at least 1 item"),
        ({"markets": ["cheap"]}, "'on-demand', 'spot' or 'capacity-block'"),
        ({"markets": ["capacity-block"]}, "needs the id of the block"),
        ({"markets": ["spot"], "capacity_reservation": "cr-1"}, "spot instances cannot use a"),
        ({"max_price": 1}, "`max_price` is for `markets: .spot.`"),
        ({"disk_iops": 4000}, "go with `disk`"),
        ({"tags": {"Name": "mine"}}, "tag 'Name' is headrace's own"),
        ({"user": "me; true"}, "should match pattern"),
        ({"endpoint_url": "http://me:secret@x"}, "holds credentials"),
        ({"instance_type": "m5.large"}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        Ec2Options(**{**_LEAST, **changes})


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ({"backend": "ec2"}, "go together; write both or neither"),
        ({"backend": "slurm", "ec2": _LEAST}, "go together; write both or neither"),
        ({"backend": "ec2", "ec2": _LEAST, "host": "job"}, "leave `host: job` out"),
        (
            {"backend": "ec2", "ec2": _LEAST, "price": {"usd_per_node_hour": 1}},
            "instances have their prices in `ec2.prices`",
        ),
        (
            {"backend": "ec2", "ec2": _LEAST, "batch": {"partition": "gpu"}},
            "backend 'ec2' has no `batch.partition`: there is no queue; `ec2` of the role names",
        ),
    ],
)
def test_what_a_role_must_not_mix(role: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        Role(**role)


@pytest.mark.parametrize(
    ("ec2", "told", "hint"),
    [
        ({"instance_type": "m5.large"}, "unknown key 'roles.gpu.ec2.instance_type'",
         "instance_types"),
        ({"disk_iops": 4}, "roles.gpu.ec2.disk_iops: give an integer (≥ 3000, ≤ 1e+12)", ""),
        ({"max_price": 1}, "roles.gpu.ec2: `max_price` is for `markets: [spot]`", ""),
        ({"region": None}, "roles.gpu.ec2.region: give text (got null)", ""),
    ],
)  # fmt: skip
def test_errors_in_it_are_told_as_those_of_any_key(ec2: dict[str, Any], told: str, hint: str):
    role = {"backend": "ec2", "ec2": {**_LEAST, **ec2}}
    tiers = [{"name": "t", "folder": "/t"}]
    content = {"name": "s", "folder": "/f", "tiers": tiers, "roles": {"gpu": role}}
    with pytest.raises(SiteError) as caught:
        parse(Site, content, "s.yaml")
    assert told in caught.value.what
    assert hint in caught.value.hint


def test_interruptions_are_of_spot_instances_and_assumed_where_the_role_does_not_say():
    assert Ec2.interruptions(Role(backend="ec2", ec2=_LEAST)) is None
    spot = {**_LEAST, "markets": ["spot"]}
    assumed = Ec2.interruptions(Role(backend="ec2", ec2=spot))
    assert 1 - math.exp(-730.5 * assumed.per_hour) == pytest.approx(0.2)  # in a month
    assert "AWS's Spot Instance Advisor" in assumed.source
    given = Ec2.interruptions(Role(backend="ec2", ec2={**spot, "interruptions_per_hour": 1}))
    assert (given.per_hour, given.source) == (1.0, "`ec2.interruptions_per_hour`")


_OUTLIVE = "its volumes /dev/xvda outlive their instances"  # so are moto's
_UNUSED = "4 GPUs, 192 GiB: `batch.gpus_per_node` is 0; the others"
_LARGE = {"cpus_per_node": 64, "gpus_per_node": 1}
_STORE = {"instance_types": ["m5.large", "m5d.large"], "instance_store": "/mnt/nvme"}


@pytest.mark.parametrize(
    ("options", "changes", "grade", "expected"),
    [
        ({"instance_types": ["m5.nope"]}, {}, "fail", {"m5.nope": "do not exist"}),
        ({"instance_types": ["m6g.large"]}, {}, "fail", {"m6g.large": "the image is for x86_64"}),
        ({"image": "ami-00000000"}, {}, "fail", {"EC2": "InvalidAMIID.NotFound"}),
        ({"subnets": ["subnet-0"]}, {}, "fail", {"subnet-0": "does not exist"}),
        (
            {"disk": "1GiB", "root_device": "/dev/sda1"}, {}, "fail",
            {"image": "its root device is /dev/xvda"},
        ),
        ({}, _LARGE, "fail", {"m5.large": "2 CPUs, 0 GPUs, 8 GiB: a node needs 64 CPUs"}),
        (
            {"instance_types": ["g4dn.12xlarge"]}, {}, "warn",
            {"g4dn.12xlarge": _UNUSED, "image": _OUTLIVE},
        ),
        ({"disk": "8GiB"}, {}, "ok", {"image": ""}),  # headrace says that it does not
        (_STORE, {}, "warn", {"m5.large": "no instance store: /mnt/nvme is on its root volume"}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_role_is_found(
    ec2_sim: Ec2Sim, options: dict[str, Any], changes: dict[str, Any], grade: str,
    expected: dict[str, str],
):  # fmt: skip
    """pains 22: also what would be paid for and not used: GPUs, volumes that stay."""
    found = list(Ec2(ec2_sim.options(**options)).check(job_spec(time_limit_s=600.0, **changes)))
    for subject, words in expected.items():
        seen = [each.seen for each in found if (each.subject, each.grade) == (subject, grade)]
        assert [words in each for each in seen] == [True]
        assert words == "" or [each.subject for each in found if words in each.seen] == [subject]
    if grade == "fail":
        assert {each.subject for each in found if each.grade is Grade.FAIL} == expected.keys()


_STANDARD, _GPUS, _SPOT_STANDARD, _SPOT_GPUS = QUOTAS
_NAMES = dict.fromkeys(
    [
        *QUOTAS,
        "EC2-VPC Elastic IPs",
        "Running On-Demand P instances",
        "Running On-Demand HPC instances",
        "Running On-Demand Trn instances",
        "Running On-Demand High Memory instances",
        "All P5 Spot Instance Requests",
        "All P4, P3 and P2 Spot Instance Requests",
    ],
    8.0,
)


@pytest.mark.parametrize(
    ("instance_type", "market", "name"),
    [
        ("m5.large", "on-demand", _STANDARD),
        ("im4gn.large", "on-demand", _STANDARD),
        ("c6i.2xlarge", "spot", _SPOT_STANDARD),
        ("g4dn.xlarge", "on-demand", _GPUS),
        ("vt1.3xlarge", "spot", _SPOT_GPUS),
        ("p5.48xlarge", "on-demand", "Running On-Demand P instances"),
        ("p5.48xlarge", "spot", "All P5 Spot Instance Requests"),
        ("p4de.24xlarge", "spot", "All P4, P3 and P2 Spot Instance Requests"),
        ("hpc6a.48xlarge", "on-demand", "Running On-Demand HPC instances"),
        ("trn1.2xlarge", "on-demand", "Running On-Demand Trn instances"),
        ("u-6tb1.metal", "on-demand", None),
    ],
)
def test_the_quota_of_a_type_is_found_by_its_name(
    instance_type: str, market: Market, name: str | None
):
    assert quota_name(_NAMES, instance_type, market) == name


def test_a_job_that_is_over_its_quota_can_never_start():
    within = judge_quota(_NAMES, "g5.xlarge", 8, "on-demand")
    assert (within.grade, within.seen) == (Grade.OK, f"8 vCPUs ({_GPUS}), 8 for a job")
    over = judge_quota(_NAMES, "g5.xlarge", 9, "on-demand")
    assert over.grade is Grade.FAIL
    assert "Service Quotas" in over.advice
    assert judge_quota({}, "g5.xlarge", 1, "spot").grade is Grade.WARN


def test_one_offer_within_its_quota_is_enough(ec2_sim: Ec2Sim):
    ec2_sim.quotas[_GPUS] = 0.0
    api, vcpus = Ec2Api(ec2_sim.options()), {"g5.xlarge": 8, "m5.large": 4}
    grades = [each.grade for each in quota_findings(api, vcpus, ["on-demand"])]
    assert grades == [Grade.WARN, Grade.OK]
    for markets, grade in (
        (["on-demand"], Grade.FAIL),
        (["on-demand", "capacity-block"], Grade.WARN),
    ):
        (told,) = quota_findings(api, {"g5.xlarge": 8}, markets)
        assert told.grade is grade


def test_a_missing_right_is_named(ec2_sim: Ec2Sim):
    from moto.core.exceptions import JsonRESTError

    ec2_sim.refuse_quotas = JsonRESTError("AccessDeniedException", "You are not authorized")
    (told,) = quota_findings(Ec2Api(ec2_sim.options()), {"m5.large": 2}, ["spot"])
    assert (told.grade, told.seen) == (Grade.WARN, "You are not authorized")
    assert "servicequotas:ListServiceQuotas" in told.advice


def _instance(state: str, code: str = "", index: int = 0, **tags: str) -> dict[str, Any]:
    return {
        "InstanceId": f"i-{index}",
        "AmiLaunchIndex": index,
        "InstanceType": "m5.large",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "State": {"Name": state},
        "StateReason": {"Code": code, "Message": f"{code}: why"},
        "Tags": [{"Key": f"headrace:{key}", "Value": value} for key, value in tags.items()],
    }


@pytest.mark.parametrize(
    ("code", "told", "state", "meaning"),
    [
        ("Client.UserInitiatedShutdown", None, JobState.CANCELLED, FailureClass.LOST),
        ("Server.SpotInstanceTermination", None, JobState.PREEMPTED, FailureClass.PREEMPTED),
        ("Server.InsufficientInstanceCapacity", None, JobState.PREEMPTED, FailureClass.PREEMPTED),
        ("Server.InternalError", None, JobState.NODE_FAILED, FailureClass.INFRASTRUCTURE),
        ("Client.VolumeLimitExceeded", None, JobState.FAILED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "0", JobState.COMPLETED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "3", JobState.FAILED, FailureClass.LOST),
        ("Client.InstanceInitiatedShutdown", "124", JobState.TIMED_OUT, FailureClass.TIMED_OUT),
        ("Client.InstanceInitiatedShutdown", None, JobState.UNKNOWN, FailureClass.LOST),
    ],
)
def test_how_an_instance_ended(code: str, told: str | None, state: JobState, meaning: FailureClass):
    """pains 23, 31."""
    for now in ("shutting-down", "terminated"):
        seen = status_of("job", [_instance(now, code)], lambda _: told)
        assert seen.state is state
        assert failure_class(seen) is meaning
        assert seen.failed_nodes == (("i-0",) if state is JobState.NODE_FAILED else ())


def test_a_node_that_ec2_takes_away_is_preempted_however_it_ends():
    """pains 23: it leaves by itself, before it is ended."""
    told = "taken away: spot notice for i-0: {}"
    living = status_of("job", [_instance("running")], lambda _: told)
    assert (living.state, living.is_taken) == (JobState.RUNNING, True)
    assert living.reason.endswith(f"i-0 is {told}")
    ended = _instance("terminated", "Client.InstanceInitiatedShutdown")
    seen = status_of("job", [ended], lambda _: told)
    assert (seen.state, seen.reason, seen.is_taken) == (JobState.PREEMPTED, told, False)
    assert not status_of("job", [_instance("running")], lambda _: "0").is_taken


def test_what_a_node_told_in_words_is_the_reason():
    ended = _instance("terminated", "Client.InstanceInitiatedShutdown")
    assert status_of("job", [ended], lambda _: "3").reason == "exit code 3"
    assert status_of("job", [ended], lambda _: "no sign").reason == "no sign"


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("pending", "pending"), JobState.PENDING),
        (("running", "pending"), JobState.PENDING),
        (("running", "running"), JobState.RUNNING),
        (("running", "stopped"), JobState.CANCELLED),
        (("stopping", "pending"), JobState.CANCELLED),
        (("running", "terminated"), JobState.RUNNING),
    ],
)
def test_a_gang_runs_when_all_of_it_does(states: tuple[str, ...], state: JobState):
    nodes = [_instance(each, index=index) for index, each in enumerate(states)]
    assert status_of("job", list(reversed(nodes)), lambda _: None).state is state


def test_the_worst_end_of_a_node_is_that_of_the_gang():
    """pains 34: the others follow it; which one it was is told."""
    ended = [
        _instance("terminated", "Client.UserInitiatedShutdown", 0),
        _instance("terminated", "Server.SpotInstanceTermination", 1),
    ]
    seen = status_of("job", ended, lambda _: None)
    assert seen.state is JobState.PREEMPTED
    assert seen.reason == "i-1: Server.SpotInstanceTermination: why"
    assert seen.nodes == ("i-0", "i-1")


def test_what_it_waits_for_is_told_with_what_there_was_no_capacity_for():
    tags = {"instead-of": "g5.xlarge in us-east-1b"}
    seen = status_of("job", [_instance("pending", **tags)], lambda _: None)
    assert seen.reason == "m5.large in us-east-1a; no capacity for g5.xlarge in us-east-1b"


def test_when_an_instance_ends_at_the_latest():
    assert ends_at(_instance("running", **{"ends-at": "1970-01-01T00:01:00Z"})) == 60.0
    assert ends_at(_instance("running")) is None
