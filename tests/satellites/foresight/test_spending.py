"""Prices that come later."""

from __future__ import annotations

from pathlib import Path

import yaml

from headrace.files.atomic import write_record
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.runs.usage import note_usage
from headrace.states import StepState
from headrace.steps.mailbox import StepResult
from support.command_line import headrace
from support.runs import attempt_row_of, lease_on_disk, make_run
from support.unpriced import site_file, suite_on


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
