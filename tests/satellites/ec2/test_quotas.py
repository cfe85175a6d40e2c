"""Quotas of EC2: which one counts for a type, and what it means for a job."""

from __future__ import annotations

import pytest

from headrace.batch.findings import Grade
from headrace_ec2.api import Ec2Api
from headrace_ec2.check import judge_quota, quota_findings, quota_name
from headrace_ec2.options import Market
from support.ec2_sim import QUOTAS, Ec2Sim

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
