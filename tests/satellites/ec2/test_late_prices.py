"""Prices of the price list that come later."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.ledger.ledger import open_ledger
from headrace_ec2 import api as ec2_api
from support.command_line import headrace
from support.unpriced import site_file, suite_on

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
    assert "Machines of 1 leases have a price now." in told.output
    (whole,) = open_ledger().usage_sums(run_id=known.run_id)
    assert (whole.usd, whole.usd_idle, whole.unpriced) == (pytest.approx(1.504), 0.752, 0)
    (row,) = open_ledger().usage(known.run_id, trial=1)
    assert (row.usd, row.price_source) == (0.752, "AWS price list")
    assert open_ledger().trial(known.run_id, 1).usd == 0.752
    assert open_ledger().usage_sums(run_id=unknown.run_id)[0].unpriced > 0
    assert open_ledger().usage_sums() == open_ledger().usage_sums()
    again = headrace("cost", known.run_id, "--refresh", "--by", "trial", "--json")
    assert "Machines of 0 leases" in again.output
