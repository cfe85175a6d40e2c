"""Whether the account's quotas let a job start: in vCPUs, for families of types and each market.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html. The families
that a quota is for are in its name, such as `Running On-Demand G and VT instances`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from headrace.batch.ec2_api import Ec2Api, Ec2Error
from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.recipe.ec2 import Market

_NAMES: dict[Market, re.Pattern[str]] = {
    "on-demand": re.compile(r"Running On-Demand (.+) instances", re.IGNORECASE),
    "spot": re.compile(r"All (.+) Spot Instance Requests", re.IGNORECASE),
}
_RAISE = "Ask for more in the console of Service Quotas: 'Amazon EC2', by that name."
_GIVE = "Give the right servicequotas:ListServiceQuotas, as in the policy above, or look there."


def findings(api: Ec2Api, vcpus: Mapping[str, int], markets: Sequence[Market]) -> Iterator[Finding]:
    """One for each type and market; it fails when none of them can ever start the job.

    Args:
        api: The way to EC2.
        vcpus: vCPUs of all nodes of the job, by type of instances.
        markets: How they are paid.
    """
    try:
        listed = list(
            api.pages("list_service_quotas", "Quotas", service="service-quotas", ServiceCode="ec2")
        )
    except Ec2Error as error:
        yield warn("quotas", error.words, _GIVE)
        return
    quotas = {str(each["QuotaName"]): float(each["Value"]) for each in listed}
    counted = [market for market in markets if market in _NAMES]  # a block is its own quota
    asked = [(each, market) for each in vcpus for market in counted]
    found = [judge(quotas, each, vcpus[each], market) for each, market in asked]
    starts = len(counted) < len(markets) or any(each.grade is not Grade.FAIL for each in found)
    for each in found:
        is_bad = each.grade is Grade.FAIL and starts  # the others are tried
        yield warn(each.subject, each.seen, each.advice) if is_bad else each


def judge(quotas: Mapping[str, float], instance_type: str, vcpus: int, market: Market) -> Finding:
    """Whether a job of so many vCPUs is within the quota of its type; pure."""
    name = quota_name(quotas, instance_type, market)
    subject = f"quota of {instance_type}"
    if name is None:
        return warn(subject, f"none is told for {market}", "Look into the console.")
    seen = f"{quotas[name]:g} vCPUs ({name}), {vcpus} for a job"
    return ok(subject, seen) if quotas[name] >= vcpus else fail(subject, seen, _RAISE)


def quota_name(names: Mapping[str, float], instance_type: str, market: Market) -> str | None:
    """The quota that counts: for `p5.48xlarge` that of P5 before that of P, else of Standard."""
    family = re.match(r"([a-z]+)(\d*)", instance_type)
    if family is None:
        return None
    letters = family[1].upper()
    for wanted in (letters + family[2], letters, letters[0]):
        for name in names:
            told = _NAMES[market].fullmatch(name)
            if told and wanted in re.findall(r"[A-Z][A-Z0-9]*", told[1].upper()):
                return name
    return None
