"""What users take to AWS is valid and fits together: `deploy/aws`, sites and sums of pages."""

from __future__ import annotations

import fnmatch
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from omegaconf import OmegaConf

from headrace.batch.findings import Grade
from headrace.batch.job_records import JobSpec
from headrace.recipe.load import parse
from headrace.recipe.site import Site
from headrace_ec2.backend import Ec2
from headrace_ec2.check import policy
from headrace_ec2.requests import offers, run_instances, tags, with_tags
from support.command_line import headrace
from support.ec2_sim import IMAGE, Ec2Sim
from support.factories import job_spec

ROOT = Path(__file__).parents[2]
HOW_TO = (ROOT / "docs" / "how-to" / "run-on-ec2.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorials" / "first-run-on-ec2.md").read_text()
AWS = ROOT / "deploy" / "aws"


class _Template(yaml.SafeLoader):
    """Reads templates of CloudFormation; what `!Ref` and the like stand for is left out."""


_Template.add_multi_constructor("!", lambda _loader, tag, node: f"{tag} {node.value}")


def resources() -> dict[str, Any]:
    """What the stack makes."""
    return yaml.load((AWS / "stack.yaml").read_text(), _Template)["Resources"]


def control_policy() -> list[dict[str, Any]]:
    """Statements of what headrace may do."""
    return resources()["ControlPolicy"]["Properties"]["PolicyDocument"]["Statement"]


def actions(statements: list[dict[str, Any]]) -> set[str]:
    """All that statements allow."""
    found = (each["Action"] for each in statements)
    return {action for each in found for action in ([each] if isinstance(each, str) else each)}


def blocks(page: str) -> list[str]:
    """YAML of a page."""
    return re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)


def site(text: str, *changes: str) -> Site:
    """A site, with parts of it changed."""
    parts = (OmegaConf.create(yaml.safe_load(each)) for each in (text, *changes))
    return parse(Site, OmegaConf.to_container(OmegaConf.merge(*parts), resolve=True), "a page")


def test_cfn_lint_finds_nothing_in_the_stack():
    command = [str(Path(sys.executable).parent / "cfn-lint"), str(AWS / "stack.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_policy_of_the_stack_names_operations_of_ec2():
    known = botocore.session.get_session().get_service_model("ec2").operation_names
    asked = {each for each in actions(control_policy()) if each.startswith("ec2:")}
    assert asked <= {f"ec2:{name}" for name in known}


def test_the_stack_allows_all_that_headrace_needs():
    (first,), (without_image, _) = blocks(TUTORIAL), blocks(HOW_TO)
    options = site(first, without_image).roles["gpu"].ec2
    assert options.image.startswith("resolve:ssm:")
    needed: Any = policy(options)["Statement"]
    assert actions(needed) <= actions(control_policy())


def test_only_the_control_machine_is_root_in_a_folder_over_a_bucket():
    """Nodes run what recipes name; files of other users are not theirs."""
    given = {
        role: str(resources()[role]["Properties"]["ManagedPolicyArns"])
        for role in ("NodeRole", "ControlRole")
    }
    assert all("S3FolderPolicy" in each for each in given.values())
    assert [role for role, each in given.items() if "S3FolderRootPolicy" in each] == ["ControlRole"]


def test_only_looking_is_allowed_everywhere():
    """pains 22: what runs is tagged with its end, and nothing else can be ended."""
    by_sid = {each["Sid"]: each for each in control_policy()}
    looks = set(by_sid["Look"]["Action"]) - {"servicequotas:ListServiceQuotas"}
    assert all(each.startswith("ec2:Describe") for each in looks)
    assert [sid for sid, each in by_sid.items() if each["Resource"] == "*"] == ["Look"]
    ends = by_sid["EndOnlyItsOwn"]["Condition"]
    assert ends["StringLike"] == {"aws:ResourceTag/Name": "headrace-*"}


@pytest.mark.parametrize("role", ["cpu", "gpu"])
def test_what_headrace_asks_for_meets_the_conditions_of_the_policy(role: str):
    options = site(*blocks(TUTORIAL)).roles[role].ec2
    assert options is not None
    spec = job_spec(name="headrace-run-cpu-1-0123abcd", cpus_per_node=4, time_limit_s=7200.0)
    request = run_instances(spec, options, offers(options)[0], "ami-0", "#!/bin/sh")
    request = with_tags(request, tags(spec, options, (), "me@here", 0.0))
    given = {tag["Key"]: tag["Value"] for tag in request["TagSpecifications"][0]["Tags"]}
    by_sid = {each["Sid"]: each for each in control_policy()}
    wanted = by_sid["StartOnlyWhatIsTaggedAndEnds"]["Condition"]
    assert fnmatch.fnmatch(given["Name"], wanted["StringLike"]["aws:RequestTag/Name"])
    assert {f"aws:RequestTag/{key}" for key in given} >= set(wanted["Null"])
    tokens = request["MetadataOptions"]["HttpTokens"]
    assert wanted["StringEquals"] == {"ec2:MetadataHttpTokens": tokens}


def test_the_site_on_parallelcluster_fits_its_configuration():
    (text,) = (each for each in blocks(HOW_TO) if each.startswith("name: "))
    shown = site(text)
    cluster = yaml.safe_load((AWS / "parallelcluster.yaml").read_text())
    assert str(Path(shown.folder).parent) == cluster["SharedStorage"][0]["MountDir"]
    queues = {each["Name"]: each for each in cluster["Scheduling"]["SlurmQueues"]}
    for role in shown.roles.values():
        (machines,) = queues[role.batch.partition]["ComputeResources"]
        assert role.nodes <= machines["MaxCount"]


def test_the_first_run_costs_what_its_parts_cost():
    rows = re.findall(
        r"\| ([\d.]+) \N{MULTIPLICATION SIGN} ([\d.]+) \| ([\d.]+) \|$", TUTORIAL, re.M
    )
    assert len(rows) == 8
    assert [f"{float(a) * float(b) + 1e-9:.2f}" for a, b, _ in rows] == [cost for *_, cost in rows]
    total = sum(float(a) * float(b) for a, b, _ in rows)
    assert f"| **all**, before rounding | | **{total:.2f}** |" in TUTORIAL


_DOCS = Path(__file__).parents[2] / "docs"
_PAGE = (_DOCS / "how-to" / "run-on-ec2.md").read_text()
_TUTORIAL = (_DOCS / "tutorials" / "first-run-on-ec2.md").read_text()
_JOB: dict[str, Any] = {
    "command": ("true",),
    "cpus_per_node": 1,
    "time_limit_s": 600.0,
    "folder": "/x",
    "log": "/x/log",
}


def _block(language: str, page: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
    return found[1]


def _values() -> Any:
    """The site of the tutorial."""
    values = OmegaConf.create(yaml.safe_load(_block("yaml", _TUTORIAL)))
    return OmegaConf.to_container(values, resolve=True)


def _site() -> Site:
    return parse(Site, _values(), "the tutorial")


def test_the_policy_of_the_page_is_the_one_that_the_check_prints():
    options = _site().roles["cpu"].ec2
    assert options is not None
    without_profile = options.model_copy(update={"instance_profile": None})
    assert json.loads(_block("json", _PAGE)) == policy(without_profile)


def test_the_commands_about_strays_do_what_the_pages_say(
    headrace_home: Path, ec2_sim: Ec2Sim, monkeypatch: pytest.MonkeyPatch
):
    """Their leases are not known here, and one should have ended long ago."""
    ec2_sim.boots = False
    Ec2(ec2_sim.options()).submit(JobSpec(name="headrace-run-gpu-1-0123abcd", nodes=2, **_JOB))
    late, named = ec2_sim.alive()
    late.add_tags({"headrace:ends-at": "2020-01-01T00:00:00Z"})
    site = _values()
    site["roles"]["cpu"]["ec2"] = site["roles"]["gpu"]["ec2"] = ec2_sim.values()
    (headrace_home / "sites").mkdir()
    (headrace_home / "sites" / "aws.yaml").write_text(yaml.safe_dump(site))
    pages = _PAGE + _TUTORIAL
    left = []
    for command in re.findall(r"^\$ headrace (cloud .*?)(?:  +#.*)?$", pages, re.M):
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        ended = headrace(*command.replace("i-0123456789abcdef0", named.id).split())
        assert ended.exit_code == 0, (command, ended.output)
        left.append([each.id for each in ec2_sim.alive()])
    assert left == [[late.id, named.id], [named.id], [], [], []]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_ec2_takes_the_roles_of_the_tutorial(name: str, ec2_sim: Ec2Sim):
    role = _site().roles[name]
    assert role.ec2 is not None
    # moto's image keeps its volume unless told otherwise
    here = {"image": IMAGE, "endpoint_url": ec2_sim.server.endpoint_url, "disk": 2**33}
    not_there = {"subnets": (), "security_groups": (), "instance_profile": None}
    options = role.ec2.model_copy(update={**here, **not_there})
    asked = {"nodes": role.nodes, "cpus_per_node": role.cpus_per_node}
    asked["time_limit_s"] = role.lifetime_s
    job = JobSpec(**{**dict(role.batch), **_JOB, **asked}, name="headrace-page")
    found = list(Ec2(options).check(job))
    assert [each for each in found if each.grade is not Grade.OK] == []
    assert [each.subject for each in found].count("start") == len(offers(options)) > 1
