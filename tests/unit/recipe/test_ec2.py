"""What a role of backend `ec2` may say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.recipe.ec2 import Ec2
from headrace.recipe.site import Role

_LEAST: dict[str, Any] = {"region": "eu-west-1", "image": "ami-1", "instance_types": ["m5.large"]}


def test_the_least_that_a_role_says():
    role = Role(backend="ec2", ec2=_LEAST)
    assert role.ec2 is not None
    assert role.ec2.markets == ("on-demand",)


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
        Ec2(**{**_LEAST, **changes})


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ({"backend": "ec2"}, "go together; write both or neither"),
        ({"backend": "slurm", "ec2": _LEAST}, "go together; write both or neither"),
        ({"backend": "ec2", "ec2": _LEAST, "host": "job"}, "leave `host: job` out"),
        (
            {"backend": "ec2", "ec2": _LEAST, "batch": {"partition": "gpu"}},
            "backend 'ec2' has no `batch.partition`: there is no queue; `ec2` of the role says",
        ),
    ],
)
def test_what_a_role_must_not_mix(role: dict[str, Any], told: str):
    with pytest.raises(ValidationError, match=told):
        Role(**role)
