"""Counts instances and their seconds, as far as EC2 still lists them, and prices them.

Prices of the site come first, then those of AWS; others stay unknown. Sources:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html,
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html
"""

from __future__ import annotations

import calendar
import itertools
import json
import logging
import re
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from headrace.batch.meter import Machine, Price
from headrace.errors import BatchError
from headrace_ec2.api import Ec2Api, Json, tags_of
from headrace_ec2.options import Ec2Options
from headrace_ec2.requests import ASKED_AT, offers
from headrace_ec2.states import has_ended

_ENDED_AT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


logger = logging.getLogger(__name__)

SITE_FILE, SPOT_HISTORY, PRICE_LIST = "site file", "spot price history", "AWS price list"

_PRICE_LIST_REGION = "us-east-1"  # one of the few with the service; it has all regions' prices
_PLAIN = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
"""Required attributes of a product in the price list, besides type and region."""

Step = tuple[float, float]
"""A price with its begin: seconds since the epoch, US dollars per hour."""


class Ec2Meter:
    """Instances of one role; see `Meter`. Unknown prices are logged and left out."""

    least_billed_s = 60.0
    advice = "write it under `ec2.prices` of the role, or allow `price_sources: [price-list]`"

    def __init__(self, options: Ec2Options) -> None:
        self._options = options
        self._api = Ec2Api(options)
        self._listed: dict[str, Price | None] = {}

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        """Return instances of a job, or of jobs `<name>-…`, that run or ended in the last hour."""
        found = self._api.instances([job_name, f"{job_name}-*"])
        return tuple(machine_of(each, time.time()) for nodes in found.values() for each in nodes)

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        """Return prices by instance; a spot price is the average over its life."""
        found: dict[str, Price | None] = {
            each.machine_id: self._known(each.kind, each.market) for each in machines
        }
        found |= self._from_history(
            [each for each in machines if each.market == "spot" and found[each.machine_id] is None]
        )
        return {machine_id: price for machine_id, price in found.items() if price is not None}

    def offers(self) -> dict[str, Price | None]:
        """Return the highest price of each offer of the role, by type and market."""
        kinds = {(each.instance_type, each.market): each for each in offers(self._options)}
        return {f"{kind} ({market})": self._most(kind, market) for kind, market in kinds}

    def _most(self, kind: str, market: str) -> Price | None:
        """Return the highest price of an instance: for spot at most that on demand."""
        known = self._known(kind, market)
        if known is not None or market != "spot":
            return known
        if self._options.max_price is not None:
            return Price(usd_per_hour=self._options.max_price, source="max_price")
        return self._known(kind, "on-demand")

    def _known(self, kind: str, market: str) -> Price | None:
        """Return the site's price, or for instances on demand that of the price list."""
        options = self._options
        prices = {str(name): usd for name, usd in options.prices.get(kind, {}).items()}
        if market in prices:
            as_of = options.prices_as_of or ""
            return Price(usd_per_hour=prices[market], source=SITE_FILE, as_of=as_of)
        if market != "on-demand" or "price-list" not in options.price_sources:
            return None
        if kind not in self._listed:
            self._listed[kind] = self._ask_list(kind)
        return self._listed[kind]

    def _ask_list(self, kind: str) -> Price | None:
        wanted = {**_PLAIN, "instanceType": kind, "regionCode": self._options.region}
        filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value}
                   for key, value in wanted.items()]  # fmt: skip
        api = Ec2Api(self._options.model_copy(update={"region": _PRICE_LIST_REGION}))
        request = {"service": "pricing", "ServiceCode": "AmazonEC2", "Filters": filters}
        try:
            products = list(api.pages("get_products", "PriceList", **request))
        except BatchError as error:
            logger.warning("The price of %s is not known: %s", kind, error.what)
            return None
        return _price(listed_price(str(each) for each in products), PRICE_LIST, time.time())

    def _from_history(self, machines: Sequence[Machine]) -> dict[str, Price | None]:
        """Query prices once for all instances of a type in a zone."""
        found: dict[str, Price | None] = {}
        for kind, zone in sorted({(each.kind, each.place) for each in machines}):
            alike = [each for each in machines if (each.kind, each.place) == (kind, zone)]
            steps = self._history(kind, zone, min(each.started_at for each in alike))
            for each in alike:
                until = each.ended_at or time.time()
                usd = average(steps, each.started_at, until)
                found[each.machine_id] = _price(usd, SPOT_HISTORY, until)
        return found

    def _history(self, kind: str, zone: str, since: float) -> list[Step]:
        """Return prices in order of time, from the last one before `since` on."""
        if "spot-history" not in self._options.price_sources:
            return []
        request: dict[str, object] = {
            "InstanceTypes": [kind],
            "AvailabilityZone": zone,
            "ProductDescriptions": ["Linux/UNIX"],
            "StartTime": datetime.fromtimestamp(since, timezone.utc),
        }
        operation, key = "describe_spot_price_history", "SpotPriceHistory"
        try:
            listed = list(self._api.pages(operation, key, **request))
        except BatchError as error:
            logger.warning("The spot price of %s is not known: %s", kind, error.what)
            return []
        return sorted((each["Timestamp"].timestamp(), float(each["SpotPrice"])) for each in listed)


def machine_of(instance: Json, now: float) -> Machine:
    """Convert an instance of EC2's answer at `now`, seconds since the epoch; pure."""
    tags = tags_of(instance)
    reported = _ENDED_AT.search(str(instance.get("StateTransitionReason", "")))
    ended_at = now if has_ended(instance) else None
    if ended_at is not None and reported is not None:
        ended_at = float(calendar.timegm(time.strptime(reported[1], "%Y-%m-%d %H:%M:%S")))
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
        is_estimate=ended_at is not None and reported is None,
    )


def average(steps: Sequence[Step], since: float, until: float) -> float | None:
    """Return the average price over a time, of prices in order of time; None if unknown."""
    before = [usd for at, usd in steps if at <= since]
    within = [(at, usd) for at, usd in steps if since < at < until]
    if not before:
        return average(steps, within[0][0], until) if within else None
    times = [since, *(at for at, _ in within), until]
    prices = [before[-1], *(usd for _, usd in within)]
    if until <= since:
        return prices[0]
    parts = (
        usd * (end - at) for usd, (at, end) in zip(prices, itertools.pairwise(times), strict=True)
    )
    return sum(parts) / (until - since)


def listed_price(products: Iterable[str]) -> float | None:
    """Return the hourly price on demand in entries of the price list; None if there is none."""
    for product in products:
        for term in json.loads(product).get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                usd = float(dimension["pricePerUnit"].get("USD", 0))
                if dimension.get("unit") == "Hrs" and usd > 0:
                    return usd
    return None


def _price(usd: float | None, source: str, at: float) -> Price | None:
    if usd is None:
        return None
    as_of = time.strftime("%Y-%m-%d", time.gmtime(at))
    return Price(usd_per_hour=usd, source=source, as_of=as_of)
