"""What instances cost, and who says so: each question holds in botocore's model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import ANY, Stubber

from headrace.batch.meter import Machine, Price
from headrace.ledger.ledger import open_ledger
from headrace_ec2 import api as ec2_api
from headrace_ec2.meter import Ec2Meter, average, listed_price, machine_of
from headrace_ec2.options import Ec2Options
from support.command_line import headrace
from support.unpriced import site_file, suite_on

_START = 1.7e9
_HOUR_S = 3600.0


def _machine(machine_id: str = "i-1", **changes: Any) -> Machine:
    values: dict[str, Any] = {
        "machine_id": machine_id,
        "job": "headrace-run-gpu-1",
        "kind": "g5.xlarge",
        "market": "spot",
        "place": "us-east-1a",
        "started_at": _START,
        "ended_at": _START + 2 * _HOUR_S,
    }
    return Machine(**{**values, **changes})


def _meter(**changes: Any) -> Ec2Meter:
    return Ec2Meter(_options(**changes))


def _options(**changes: Any) -> Ec2Options:
    least = {"region": "us-east-1", "image": "ami-1", "instance_types": ["g5.xlarge"]}
    return Ec2Options(**{**least, **changes})


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Stubber]]:
    """Services of AWS that answer only what they were told to."""
    stubs: dict[str, Stubber] = {}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for service in ("ec2", "pricing"):
        stubs[service] = Stubber(ec2_api._client(service, "us-east-1", None, None))
        stubs[service].activate()
    yield stubs
    for stub in stubs.values():
        stub.assert_no_pending_responses()
        stub.deactivate()
    ec2_api._client.cache_clear()


def _history(*steps: tuple[float, str]) -> dict[str, Any]:
    each = {"InstanceType": "g5.xlarge", "AvailabilityZone": "us-east-1a"}
    told = [
        {**each, "SpotPrice": usd, "Timestamp": datetime.fromtimestamp(_START + at, timezone.utc)}
        for at, usd in steps
    ]
    return {"SpotPriceHistory": told, "NextToken": ""}


def test_the_site_file_comes_first_and_nobody_is_asked(aws: dict[str, Stubber]):
    prices = {"g5.xlarge": {"spot": 0.4, "on-demand": 1.006}}
    told = _meter(prices=prices, prices_as_of="2026-06-17").prices(
        [_machine(), _machine("i-2", market="on-demand")]
    )
    site = {"source": "site file", "as_of": "2026-06-17"}
    assert told == {
        "i-1": Price(usd_per_hour=0.4, **site),
        "i-2": Price(usd_per_hour=1.006, **site),
    }


def test_a_spot_price_is_the_average_over_the_life_and_asked_for_once(aws: dict[str, Stubber]):
    asked = {
        "InstanceTypes": ["g5.xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "AvailabilityZone": "us-east-1a",
        "StartTime": datetime.fromtimestamp(_START, timezone.utc),
    }
    steps = _history((_HOUR_S, "0.6"), (-9000.0, "0.4"))  # EC2 gives the newest first
    aws["ec2"].add_response("describe_spot_price_history", steps, asked)
    late = _machine("i-2", started_at=_START + _HOUR_S)
    told = _meter(markets=["spot"]).prices([_machine(), late])
    source = {"source": "spot price history", "as_of": "2023-11-15"}
    assert told["i-1"].model_dump() == {"usd_per_hour": pytest.approx(0.5), **source}
    assert told["i-2"].usd_per_hour == pytest.approx(0.6)


def test_the_price_list_is_asked_where_the_site_allows_it(aws: dict[str, Stubber]):
    on_demand = [_machine("i-1", market="on-demand"), _machine("i-2", market="on-demand")]
    assert _meter().prices(on_demand) == {}
    asked = {"ServiceCode": "AmazonEC2", "Filters": ANY}
    aws["pricing"].add_response("get_products", {"PriceList": [_product("1.006")]}, asked)
    told = _meter(price_sources=["price-list"]).prices(on_demand)
    assert {each.usd_per_hour for each in told.values()} == {1.006}
    assert {each.source for each in told.values()} == {"AWS price list"}


def test_a_price_that_nobody_tells_is_unknown_and_not_0(
    aws: dict[str, Stubber], caplog: pytest.LogCaptureFixture
):
    """pains 37."""
    aws["ec2"].add_client_error("describe_spot_price_history", "UnauthorizedOperation", "no")
    aws["pricing"].add_client_error("get_products", "AccessDeniedException", "no right")
    meter = _meter(price_sources=["spot-history", "price-list"])
    assert meter.prices([_machine(), _machine("i-2", market="on-demand")]) == {}
    assert "spot price of g5.xlarge is not known: EC2 says UnauthorizedOperation" in caplog.text
    assert "The price of g5.xlarge is not known: EC2 says AccessDenied" in caplog.text


def test_the_most_of_spot_is_what_the_site_would_pay(aws: dict[str, Stubber]):
    on_demand = {"prices": {"g5.xlarge": {"on-demand": 1.006}}, "markets": ["spot", "on-demand"]}
    assert [each and each.usd_per_hour for each in _meter(**on_demand).offers().values()] == [
        1.006, 1.006]  # fmt: skip
    capped = _meter(**on_demand, max_price=0.5).offers()
    assert capped["g5.xlarge (spot)"] == Price(usd_per_hour=0.5, source="max_price")
    assert _meter().offers() == {"g5.xlarge (on-demand)": None}


@pytest.mark.parametrize(
    ("steps", "since", "until", "usd"),
    [
        ([], 0.0, 9.0, None),
        ([(0.0, 2.0)], 5.0, 9.0, 2.0),
        ([(0.0, 2.0), (5.0, 4.0)], 0.0, 10.0, 3.0),
        ([(0.0, 2.0), (5.0, 4.0), (5.0, 8.0)], 5.0, 5.0, 8.0),
        ([(5.0, 4.0)], 0.0, 10.0, 4.0),
        ([(9.0, 4.0)], 0.0, 5.0, None),
    ],
)
def test_averages(steps: Any, since: float, until: float, usd: float | None):
    assert average(steps, since, until) == usd


def test_reserved_and_free_entries_of_the_price_list_are_no_price():
    assert listed_price([_product("0.0000000000"), _product("1.5")]) == 1.5
    assert listed_price([json.dumps({"terms": {"Reserved": {}}})]) is None


@pytest.mark.parametrize(
    ("reason", "ended_at", "is_estimate"),
    [
        ("User initiated (2023-11-14 22:15:00 GMT)", 1_700_000_100.0, False),
        ("", 1_700_000_500.0, True),
    ],
)
def test_when_an_instance_ended(reason: str, ended_at: float, is_estimate: bool):
    instance = {
        "InstanceId": "i-1",
        "InstanceType": "g5.xlarge",
        "InstanceLifecycle": "spot",
        "LaunchTime": datetime.fromtimestamp(_START, timezone.utc),
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "State": {"Name": "terminated"},
        "StateTransitionReason": reason,
        "Tags": [
            {"Key": "Name", "Value": "headrace-run-gpu-1"},
            {"Key": "headrace:asked-at", "Value": "1699999990.5"},
        ],
    }
    expected = _machine(asked_at=1699999990.5, ended_at=ended_at, is_estimate=is_estimate)
    assert machine_of(instance, _START + 500) == expected
    alive = machine_of({**instance, "State": {"Name": "running"}}, _START + 500)
    assert (alive.ended_at, alive.is_estimate) == (None, False)


def _product(usd: str) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    return json.dumps({"terms": {"OnDemand": {"a.b": {"priceDimensions": {"a.b.c": dimension}}}}})


def test_the_page_of_a_proxy_is_cut(aws: dict[str, Stubber]):
    page = "<html>\n" + "<p>blocked</p>\n" * 1000
    aws["ec2"].add_client_error("describe_spot_price_history", "403", page, http_status_code=403)
    with pytest.raises(ec2_api.Ec2Error) as refused:
        ec2_api.Ec2Api(_options()).call("describe_spot_price_history")
    assert "\n" not in refused.value.what
    assert len(refused.value.what) < 600


_LISTED = {
    "product": {"attributes": {"instanceType": "g4dn.2xlarge", "regionCode": "us-east-1"}},
    "serviceCode": "AmazonEC2",
    "terms": {
        "OnDemand": {
            "X.JRTCKXETXF": {
                "priceDimensions": {
                    "X.JRTCKXETXF.6YS6EN2CT7": {
                        "unit": "Hrs",
                        "description": "$0.752 per On Demand Linux g4dn.2xlarge Instance Hour",
                        "pricePerUnit": {"USD": "0.7520000000"},
                    }
                }
            }
        }
    },
}
"""An entry of the price list of AWS, in its form; what does not matter is left out."""


class _PriceList(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        is_known = wanted["instanceType"] == "g4dn.2xlarge"
        products = [json.dumps(_LISTED)] if is_known else []
        body = json.dumps({"FormatVersion": "aws_v1", "PriceList": products}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def price_list(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The price list of AWS, which knows one type of instance."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _PriceList) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", url)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        ec2_api._client.cache_clear()
        yield
        ec2_api._client.cache_clear()
        server.shutdown()
        thread.join()


def test_prices_of_the_price_list_come_later_also_to_trials(headrace_home: Path, price_list: None):
    """pains 37."""
    gpu = {
        "backend": "ec2",
        "ec2": {"region": "us-east-1", "image": "ami-1", "instance_types": ["g4dn.2xlarge"]},
    }
    site = site_file(headrace_home, roles={"cpu": {}, "gpu": gpu})
    known, unknown = suite_on(site, "g4dn.2xlarge"), suite_on(site, "g9.huge")
    assert "without a cost" in headrace("cost").output
    told = headrace("cost", "--refresh")
    assert "Machines of 1 leases have another price now." in told.output
    (whole,) = open_ledger().usage_sums(run_id=known.run_id)
    assert (whole.usd, whole.idle_s, whole.unpriced) == (pytest.approx(1.504), 3600.0, 0)
    assert open_ledger().trial(known.run_id, 1).usd == 0.752
    assert open_ledger().usage_sums(run_id=unknown.run_id)[0].unpriced > 0
    assert open_ledger().usage_sums() == open_ledger().usage_sums()
    again = headrace("cost", known.run_id, "--refresh", "--by", "trial", "--json")
    assert "Machines of 0 leases" in again.output
