"""What the page about EC2 says of rights and sites holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from headrace.batch.ec2 import Ec2
from headrace.batch.ec2_check import policy
from headrace.batch.findings import Grade
from headrace.batch.jobs import JobSpec
from headrace.recipe.load import parse
from headrace.recipe.site import Site
from support.ec2_sim import IMAGE, Ec2Sim

_PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "run-on-ec2.md").read_text()


def _block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", _PAGE, re.M | re.S)
    assert found is not None
    return found[1]


def _site() -> Site:
    return parse(Site, yaml.safe_load(_block("yaml")), "the page")


def test_the_policy_of_the_page_is_the_one_that_the_check_tells():
    options = _site().roles["cpu"].ec2
    assert options is not None
    assert json.loads(_block("json")) == policy(options)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_ec2_takes_the_roles_of_the_page(name: str, ec2_sim: Ec2Sim, tmp_path: Path):
    role = _site().roles[name]
    assert role.ec2 is not None
    # moto's image keeps its volume unless told otherwise
    here = {"image": IMAGE, "endpoint_url": ec2_sim.server.endpoint_url, "disk": 2**33}
    options = role.ec2.model_copy(update={**here, "subnets": (), "security_groups": ()})
    job = JobSpec(
        **dict(role.batch),
        name="headrace-page",
        command=("true",),
        nodes=role.nodes,
        cpus_per_node=role.cpus_per_node,
        time_limit_s=role.lifetime_s,
        folder=str(tmp_path),
        log=str(tmp_path / "log"),
    )
    found = list(Ec2(options).check(job))
    assert [each for each in found if each.grade is not Grade.OK] == []
    assert [each.subject for each in found].count("start") == 4
