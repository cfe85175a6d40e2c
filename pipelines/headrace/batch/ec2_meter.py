"""Counts instances and their seconds: what EC2 remembers of them, an hour beyond their end."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Sequence

from headrace.batch.ec2_api import Ec2Api, Json, tags_of
from headrace.batch.ec2_prices import Ec2Prices
from headrace.batch.ec2_requests import ASKED_AT, offers
from headrace.batch.ec2_states import has_ended
from headrace.batch.machines import Machine, Price
from headrace.recipe.ec2 import Ec2 as Ec2Options

_TOLD_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


class Ec2Meter:
    """Instances of one role; see `Meter`.

    Args:
        options: What the role says of instances.
    """

    def __init__(self, options: Ec2Options) -> None:
        self._options = options
        self._api = Ec2Api(options)
        self._prices = Ec2Prices(options, self._api)

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        """Instances of a job, or of jobs `<name>-…`, that run or ended within the last hour."""
        found = self._api.instances([job_name, f"{job_name}-*"])
        return tuple(machine_of(each, time.time()) for nodes in found.values() for each in nodes)

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        """Prices by instance."""
        return self._prices.of(machines)

    def offers(self) -> dict[str, Price | None]:
        """The most that each offer of the role costs, by type and market."""
        kinds = {(each.instance_type, each.market): each for each in offers(self._options)}
        return {f"{kind} ({market})": self._prices.most(kind, market) for kind, market in kinds}


def machine_of(instance: Json, now: float) -> Machine:
    """An instance that EC2 tells of, at a moment in seconds since the epoch; pure."""
    tags = tags_of(instance)
    told = _TOLD_AT.search(str(instance.get("StateTransitionReason", "")))
    ended_at = now if has_ended(instance) else None
    if ended_at is not None and told is not None:
        ended_at = float(calendar.timegm(time.strptime(told[1], "%Y-%m-%d %H:%M:%S")))
    asked_at = tags.get(ASKED_AT)
    return Machine(
        machine_id=instance["InstanceId"],
        job=tags.get("Name", ""),
        kind=instance.get("InstanceType", ""),
        market=instance.get("InstanceLifecycle", "on-demand"),
        place=instance.get("Placement", {}).get("AvailabilityZone", ""),
        asked_at=float(asked_at) if asked_at else None,
        started_at=instance["LaunchTime"].timestamp(),
        ended_at=ended_at,
        is_estimate=ended_at is not None and told is None,
    )
