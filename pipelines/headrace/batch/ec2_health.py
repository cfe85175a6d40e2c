"""Instances that hang: EC2 takes them for running, and its status checks have failed for long.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-system-instance-status-check.html
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping

from headrace.batch.ec2_api import Ec2Api, Json
from headrace.errors import BatchError

logger = logging.getLogger(__name__)

HUNG_AFTER_S = 300.0
"""An instance is given up when a check has failed for this time: shorter failures pass by."""

_ROUND_S = 60.0  # as often as EC2 checks
_IDS_AT_ONCE = 100
_CHECKS = {"SystemStatus": "system", "InstanceStatus": "instance"}


class HealthWatch:
    """Knows which instances hang; all are asked for once a minute, a hundred at each look."""

    def __init__(self, api: Ec2Api) -> None:
        self._api = api
        self._begun_s = -math.inf
        self._left: list[str] = []
        self._hung: dict[str, str] = {}

    def hung(self, instances: Iterable[Json]) -> Mapping[str, str]:
        """Instances that hang, or did when they were ended, and why they are thought to.

        Side effects: asks EC2, once at most; without an answer nothing new is known.
        """
        now_s = time.monotonic()
        if not self._left and now_s - self._begun_s >= _ROUND_S:
            self._begun_s = now_s
            self._left = [x["InstanceId"] for x in instances if x["State"]["Name"] == "running"]
        asked, self._left = self._left[:_IDS_AT_ONCE], self._left[_IDS_AT_ONCE:]
        if asked:
            try:
                told = self._api.call("describe_instance_status", InstanceIds=asked)
                self._hung |= failed_checks(told["InstanceStatuses"], time.time())
            except BatchError as error:
                logger.warning("Whether instances hang is not known: %s", error.what)
        return self._hung


def failed_checks(statuses: Iterable[Json], now: float) -> dict[str, str]:
    """Instances of which a check has failed for long at a time, and which one; pure.

    Args:
        statuses: What DescribeInstanceStatus tells of them.
        now: The time, seconds since the epoch.
    """
    return {str(each["InstanceId"]): why for each in statuses for why in _failures(each, now)}


def _failures(status: Json, now: float) -> Iterator[str]:
    for key, name in _CHECKS.items():
        for check in status.get(key, {}).get("Details", ()):
            since = check.get("ImpairedSince")
            if check.get("Status") != "failed" or since is None:
                continue
            if now - since.timestamp() >= HUNG_AFTER_S:
                yield f"EC2's {name} status check has failed since {since:%H:%M} UTC"
