"""What a role of backend `ec2` may say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.errors import SiteError
from headrace.recipe.load import parse
from headrace.recipe.site import Role, Site
from headrace_ec2.backend import Ec2
from headrace_ec2.options import Ec2Options

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
