"""Prices that come later."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import BUILT_IN
from headrace.runs.runs import Run
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import LeaseState, StepState
from headrace.steps.mailbox import StepResult
from headrace.steps.usage import AttemptUsage
from headrace.suites.records import Added, Ended, Trial
from headrace_ec2 import api as ec2_api
from support.command_line import headrace
from support.ledger_rows import machine_row
from support.runs import attempt_row_of, lease_on_disk, make_run

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


def site_file(home: Path, **changes: Any) -> str:
    site = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text())
    (home / "sites").mkdir(exist_ok=True)
    (home / "sites" / "mine.yaml").write_text(yaml.safe_dump({**site, "name": "mine", **changes}))
    return "mine"


def suite_on(site: str, kind: str) -> Run:
    """A suite of one trial of an hour, on a machine that was there for two and has no price."""
    run = make_run(site=site)
    lease_id = lease_on_disk(run, "gpu")
    open_ledger().put_machines(
        [machine_row(kind, lease_id=lease_id, kind=kind, started_at=0.0, ended_at=7200.0,
                     billed_s=7200.0)]
    )  # fmt: skip
    open_ledger().set_lease_state(lease_id, LeaseState.CLOSED, ended_at=7200.0)
    attempt_row_of(run, "suite", lease_id, state=StepState.SUCCEEDED, number=None,
                   started_at=0.0, finished_at=7200.0)  # fmt: skip
    entries = (
        Added(trial=Trial(number=1, name="1", values={}, group=1)),
        Ended(number=1, attempt=1, state=StepState.SUCCEEDED, is_final=True, lease_id=lease_id,
              started_at=0.0, finished_at=3600.0, usage=AttemptUsage(node=kind)),
    )  # fmt: skip
    run.folder.journal.write_text("".join(f"{each.model_dump_json()}\n" for each in entries))
    note_trials(run.folder)
    note_usage(run.run_id)
    open_ledger().finish_run(run.run_id, StepState.SUCCEEDED, 7200.0)
    return run


def test_prices_of_the_price_list_come_later_also_to_trials(headrace_home: Path, price_list: None):
    """pains 37."""
    gpu = {
        "backend": "ec2",
        "ec2": {"region": "us-east-1", "image": "ami-1", "instance_types": ["g4dn.2xlarge"]},
    }
    site = site_file(headrace_home, roles={"cpu": {}, "gpu": gpu})
    known, unknown = suite_on(site, "g4dn.2xlarge"), suite_on(site, "g9.huge")
    assert "no money" in headrace("cost").output
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


def test_what_a_site_says_later_counts_for_machines_without_a_price(headrace_home: Path):
    site = site_file(headrace_home)
    run = suite_on(site, "node-1")
    roles = yaml.safe_load((headrace_home / "sites" / "mine.yaml").read_text())["roles"]
    for usd in (2.0, 9.0):  # the second is too late
        roles["gpu"]["price"] = {"usd_per_node_hour": usd}
        site_file(headrace_home, roles=roles)
        headrace("cost", run.run_id, "--refresh")
    assert open_ledger().usage_sums(run_id=run.run_id)[0].usd == 4.0
    (headrace_home / "sites" / "mine.yaml").unlink()
    assert "of 0 leases" in headrace("cost", run.run_id, "--refresh").output


def test_a_run_that_is_damaged_keeps_no_other_from_its_prices(headrace_home: Path):
    site = site_file(headrace_home)
    whole, damaged = suite_on(site, "node-1"), suite_on(site, "node-2")
    spec = damaged.lease_folder(f"{damaged.run_id}-gpu-1").spec
    spec.write_text("{")
    roles = yaml.safe_load((headrace_home / "sites" / "mine.yaml").read_text())["roles"]
    roles["gpu"]["price"] = {"usd_per_node_hour": 2.0}
    site_file(headrace_home, roles=roles)
    assert "of 1 leases" in headrace("cost", "--refresh").output
    assert open_ledger().usage_sums(run_id=whole.run_id)[0].usd == 4.0


def test_what_a_step_told_is_in_its_row_and_sites_may_still_price_storage(headrace_home: Path):
    run = make_run(site=site_file(headrace_home, prices={"usd_per_gb_month": 0.02}))
    lease_id = lease_on_disk(run)
    attempt_row_of(run, "pack", lease_id, state=StepState.SUCCEEDED, number=1, started_at=1.0,
                   finished_at=9.0)  # fmt: skip
    usage = AttemptUsage(nodes=2, cpus=4, samples=90, stored_bytes=5 * 10**10, fetched_bytes=10**9)
    result = StepResult(state=StepState.SUCCEEDED, started_at=1.0, finished_at=9.0, usage=usage)
    step = run.lease_folder(lease_id).step(1)
    step.path.mkdir(parents=True)
    write_record(step.result, result)
    note_usage(run.run_id)
    row = next(each for each in open_ledger().usage(run.run_id) if each.kind == "pack")
    assert (row.nodes, row.cpus, row.samples, row.stored_bytes) == (2, 4.0, 90, 5 * 10**10)
