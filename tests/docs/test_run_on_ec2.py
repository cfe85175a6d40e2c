"""What the pages about EC2 say of rights and sites holds."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from headrace.batch.findings import Grade
from headrace.batch.job_records import JobSpec
from headrace.recipe.load import parse
from headrace.recipe.site import Site
from headrace_ec2.backend import Ec2
from headrace_ec2.check import policy
from headrace_ec2.requests import offers
from support.command_line import headrace
from support.ec2_sim import IMAGE, Ec2Sim

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
