"""Checks of EC2 for a role: rights, image, types, subnets, quotas; and the policy it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.batch.findings import Finding, Grade, fail, ok, warn
from headrace.batch.job_records import JobSpec
from headrace.errors import HeadraceError
from headrace_ec2.api import Ec2Api, Ec2Error, Json
from headrace_ec2.options import Ec2Options, Market

_NEEDED = (
    *("DescribeInstances", "DescribeInstanceStatus", "GetConsoleOutput", "RunInstances"),
    *("CreateTags", "TerminateInstances", "DescribeImages", "DescribeInstanceTypes"),
    *("DescribeInstanceTypeOfferings", "DescribeSubnets", "DescribeVolumes", "DeleteVolume"),
)
_OWN_ONLY = ("TerminateInstances", "DeleteVolume", "GetConsoleOutput")
_QUOTAS = "servicequotas:ListServiceQuotas"
_NO_INSTANCE = "i-00000000000000000"
_DENIED = "UnauthorizedOperation"
_GIVE = "Give the user or role of the credentials the policy below."


def policy(options: Ec2Options) -> dict[str, object]:
    """Return the least rights that headrace needs, as an IAM policy."""
    everything = [f"ec2:{each}" for each in _NEEDED if each not in _OWN_ONLY]
    if "spot" in options.markets and "spot-history" in options.price_sources:
        everything.append("ec2:DescribeSpotPriceHistory")
    if "price-list" in options.price_sources:
        everything.append("pricing:GetProducts")
    statements: list[dict[str, object]] = [
        {"Effect": "Allow", "Action": [*everything, _QUOTAS], "Resource": "*"},
        {
            "Effect": "Allow",
            "Action": [f"ec2:{each}" for each in _OWN_ONLY],
            "Resource": "*",
            "Condition": {"StringLike": {"aws:ResourceTag/Name": "headrace-*"}},
        },
    ]
    if options.instance_profile:
        to_ec2 = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
        passes = {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "*"}
        statements.append({**passes, "Condition": to_ec2})
    if options.image.startswith("resolve:ssm:"):
        statements.append({"Effect": "Allow", "Action": "ssm:GetParameters", "Resource": "*"})
    return {"Version": "2012-10-17", "Statement": statements}


def findings(
    api: Ec2Api, options: Ec2Options, spec: JobSpec, image_id: Callable[[], str]
) -> Iterator[Finding]:
    """Check rights, image, types of instances and subnets; stop where later checks cannot work."""
    yield ok("IAM policy", json.dumps(policy(options), separators=(",", ":")))
    try:
        rights = list(_rights(api))
        yield from rights
        if all(each.grade is not Grade.FAIL for each in rights):
            yield from _subnets(api, options, spec)
            image = _image(api, image_id())
            yield judge_image(image, options)
            yield from _types(api, options, spec, str(image.get("Architecture", "")))
    except HeadraceError as error:
        yield fail("EC2", error.what, error.hint)


def judge_image(image: Json, options: Ec2Options) -> Finding:
    """Check that instances can start from an image, and that its root volume is the given one."""
    if not image:
        return warn("image", f"{options.image}: nothing is known of it", "Correct `ec2.image`.")
    found = f"{image.get('ImageId')} {image.get('Name', '')}, {image.get('Architecture', '')}"
    root = image.get("RootDeviceName", options.root_device)
    if options.disk is not None and root != options.root_device:
        why = f"its root device is {root}, not {options.root_device}"
        return fail("image", f"{found}: {why}", f"Write `root_device: {root}` under `ec2`.")
    lasting = [
        each["DeviceName"]
        for each in image.get("BlockDeviceMappings", ())
        if not each.get("Ebs", {}).get("DeleteOnTermination", True)
        and (options.disk is None or each["DeviceName"] != root)
    ]
    if lasting:
        why = f"its volumes {', '.join(lasting)} outlive their instances, and cost"
        return warn("image", f"{found}: {why}", "`headrace cloud destroy` ends them, too.")
    return ok("image", found)


def judge_type(kind: Json, spec: JobSpec, architecture: str) -> Finding:
    """Check that a type of instances has what a node needs."""
    name = str(kind["InstanceType"])
    cpus = int(kind["VCpuInfo"]["DefaultVCpus"])
    gpus = sum(int(gpu["Count"]) for gpu in kind.get("GpuInfo", {}).get("Gpus", ()))
    known = kind.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    found = f"{cpus} CPUs, {gpus} GPUs, {kind['MemoryInfo']['SizeInMiB'] / 1024:g} GiB"
    if cpus < spec.cpus_per_node:
        less = "Ask for less (`threads_per_node`, ranks), or name a larger type."
        return fail(name, f"{found}: a node needs {spec.cpus_per_node} CPUs", less)
    if gpus < spec.gpus_per_node:
        why = f"{found}: `batch.gpus_per_node` is {spec.gpus_per_node}"
        return fail(name, why, "Name a type with so many GPUs, or write fewer.")
    if architecture and known and architecture not in known:
        why = f"it runs {', '.join(known)}, and the image is for {architecture}"
        return fail(name, why, "Name an image for this type, or a type for this image.")
    if gpus > spec.gpus_per_node:
        why = f"{found}: `batch.gpus_per_node` is {spec.gpus_per_node}; the others are paid for"
        return warn(name, why, "Write all of them, and as many ranks; or name a smaller type.")
    return ok(name, found)


def _rights(api: Ec2Api) -> Iterator[Finding]:
    """Check rights by DryRun, except for starts and tags, which DryRun of the starts checks."""
    dry: dict[str, dict[str, Any]] = {
        "describe_instances": {},
        "describe_instance_status": {},
        "terminate_instances": {"InstanceIds": [_NO_INSTANCE]},
        "get_console_output": {"InstanceId": _NO_INSTANCE},
    }
    for operation, request in dry.items():
        try:
            api.call(operation, **request, DryRun=True)
        except Ec2Error as error:
            if error.code != _DENIED:
                yield ok("rights", operation)
            elif request:  # a right to headrace's own instances needs an instance to be tested
                yield warn("rights", f"{operation}: {error.words}", _GIVE)
            else:
                yield fail("rights", f"{operation}: {error.words}", _GIVE)


def _subnets(api: Ec2Api, options: Ec2Options, spec: JobSpec) -> Iterator[Finding]:
    for subnet in options.subnets:
        try:
            (found,) = api.pages("describe_subnets", "Subnets", SubnetIds=[subnet])
        except Ec2Error as error:
            yield fail(subnet, error.words, "Correct `ec2.subnets` of the role.")
            continue
        free, zone = int(found["AvailableIpAddressCount"]), found["AvailabilityZone"]
        if free < spec.nodes:
            yield fail(subnet, f"{free} free addresses in {zone}", "Name a larger subnet.")
        else:
            yield ok(subnet, f"{free} free addresses in {zone}")
        offered = {each["InstanceType"] for each in _offered(api, zone)}
        missing = [each for each in options.instance_types if each not in offered]
        if missing:
            why = f"{zone} has no {', '.join(missing)}"
            yield warn(subnet, why, "The others are tried; name a subnet of another zone, too.")


def _offered(api: Ec2Api, zone: str) -> Iterator[Json]:
    where = {"Name": "location", "Values": [zone]}
    operation, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
    return api.pages(operation, key, LocationType="availability-zone", Filters=[where])


def _image(api: Ec2Api, image_id: str) -> Json:
    if image_id.startswith("resolve:"):
        return {}
    found = api.call("describe_images", ImageIds=[image_id])["Images"]
    return found[0] if found else {}


def _types(api: Ec2Api, options: Ec2Options, spec: JobSpec, architecture: str) -> Iterator[Finding]:
    vcpus = {}
    for name in options.instance_types:
        try:
            (found,) = api.pages("describe_instance_types", "InstanceTypes", InstanceTypes=[name])
        except Ec2Error as error:
            yield fail(name, error.words, "Correct `ec2.instance_types` of the role.")
            continue
        yield judge_type(found, spec, architecture)
        if options.instance_store and not found.get("InstanceStorageSupported"):
            why = f"it has no instance store: {options.instance_store} is on its root volume"
            yield warn(name, why, "Name a type that has one, as `g5`, `m5d`, or accept it.")
        vcpus[name] = spec.nodes * int(found["VCpuInfo"]["DefaultVCpus"])
    yield from quota_findings(api, vcpus, options.markets)


_NAMES: dict[Market, re.Pattern[str]] = {
    "on-demand": re.compile(r"Running On-Demand (.+) instances", re.IGNORECASE),
    "spot": re.compile(r"All (.+) Spot Instance Requests", re.IGNORECASE),
}
"""Names of quotas, as `Running On-Demand G and VT instances`, which contain the families.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-quotas.html
"""
_RAISE = "Request more in the console of Service Quotas: 'Amazon EC2', by that name."
_GIVE_QUOTAS = (
    "Give the right servicequotas:ListServiceQuotas, as in the policy above, or look there."
)


def quota_findings(
    api: Ec2Api, vcpus: Mapping[str, int], markets: Sequence[Market]
) -> Iterator[Finding]:
    """Yield a finding for each type and market; fail only if none of them can start the job.

    `vcpus` are those of all nodes of the job, by type of instances.
    """
    try:
        listed = list(
            api.pages("list_service_quotas", "Quotas", service="service-quotas", ServiceCode="ec2")
        )
    except Ec2Error as error:
        yield warn("quotas", error.words, _GIVE_QUOTAS)
        return
    quotas = {str(each["QuotaName"]): float(each["Value"]) for each in listed}
    counted = [market for market in markets if market in _NAMES]  # a capacity block has no quota
    asked = [(each, market) for each in vcpus for market in counted]
    found = [judge_quota(quotas, each, vcpus[each], market) for each, market in asked]
    starts = len(counted) < len(markets) or any(each.grade is not Grade.FAIL for each in found)
    for each in found:
        is_bad = each.grade is Grade.FAIL and starts  # the others are tried
        yield warn(each.subject, each.seen, each.advice) if is_bad else each


def judge_quota(
    quotas: Mapping[str, float], instance_type: str, vcpus: int, market: Market
) -> Finding:
    """Check that a job with so many vCPUs is within the quota of its type; pure."""
    name = quota_name(quotas, instance_type, market)
    subject = f"quota of {instance_type}"
    if name is None:
        return warn(subject, f"none is listed for {market}", "Check it in the console.")
    found = f"{quotas[name]:g} vCPUs ({name}), {vcpus} for a job"
    return ok(subject, found) if quotas[name] >= vcpus else fail(subject, found, _RAISE)


def quota_name(names: Mapping[str, float], instance_type: str, market: Market) -> str | None:
    """Return the quota that applies: for `p5.48xlarge` that of P5, else of P, else of Standard."""
    family = re.match(r"([a-z]+)(\d*)", instance_type)
    if family is None:
        return None
    letters = family[1].upper()
    for wanted in (letters + family[2], letters, letters[0]):
        for name in names:
            families = _NAMES[market].fullmatch(name)
            if families and wanted in re.findall(r"[A-Z][A-Z0-9]*", families[1].upper()):
                return name
    return None
