"""Prices that come later, and what interruptions of a training cost on average."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.errors import UserError
from headrace.files.atomic import write_record
from headrace.ledger.attempt_usage import AttemptUsage
from headrace.ledger.ledger import open_ledger
from headrace.recipe.backend import Interruptions
from headrace.recipe.load import load_recipe
from headrace.recipe.recipe import Recipe
from headrace.runs.usage import note_usage
from headrace.states import LeaseState, StepState
from headrace.steps.mailbox import StepResult
from headrace_foresight.lifetime import expected_loss, loss_in_words
from headrace_foresight.ownership import Cluster, costs_per_year, usd_per_hour
from support.command_line import headrace
from support.factories import built_in, write_site
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
    before = open_ledger().usage(run.run_id)
    assert "of 1 leases have another price" in headrace("cost", run.run_id, "--correct").output
    assert open_ledger().usage_sums(run_id=run.run_id)[0].usd == 18.0
    assert open_ledger().trial(run.run_id, 1).usd == 9.0
    assert open_ledger().usage(run.run_id)[0] == before[0]
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


_PAGE = Path(__file__).parents[3] / "docs" / "explanations" / "costs.md"


def _example() -> tuple[str, str]:
    own = _PAGE.read_text().partition("## A cluster of one's own")[2]
    found = re.search(r"```yaml\n(.*?)```\n\n```text\n(.*?)```", own, re.DOTALL)
    return found[1], found[2]


def test_the_worked_example_is_what_the_command_tells(tmp_path: Path):
    given, told = _example()
    file = tmp_path / "cluster.yaml"
    file.write_text(given)
    ended = headrace("ownership", str(file))
    assert (ended.exit_code, ended.stdout) == (0, told)


def test_the_worked_example_holds_when_it_is_reckoned_by_hand():
    given = yaml.safe_load(_example()[0])["cluster"]
    cluster = Cluster.model_validate(given)
    payment, owed = costs_per_year(cluster)["purchase"], 1_600_000.0
    for _ in range(5):  # as a bank would: interest on what is owed, less the payment
        owed = owed * 1.04 - payment
    assert owed == pytest.approx(160_000.0)  # what the resale pays
    energy = 8 * 6.5 * 1.3 * 24 * 365 * 0.15
    year = payment + energy + 30_000 + 0.05 * 1_600_000 + 60_000
    assert usd_per_hour(cluster) == pytest.approx(year / (64 * 24 * 365 * 0.7))


def test_without_interest_or_gpus_the_sum_is_plain():
    plain = Cluster(
        purchase_usd=8760.0, lifetime_years=2, nodes=1, watts_per_node=1000.0, pue=1.0,
        usd_per_kwh=0.1, utilisation=0.5,
    )  # fmt: skip
    assert usd_per_hour(plain) == pytest.approx((4380 + 876) / 4380)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cluster: {nodes: 0}", "the key 'cluster.purchase_usd' is missing"),
        ("[]", "the file: give a mapping with keys of cluster, project"),
        ("a: [", "cannot be read"),
        ("cluster: {utilisation: 1.5, price: 3}", "utilisation: give a number .> 0, ≤ 1. .got 1.5"),
        ("cluster: {utilisation: 1, price: 3}", "unknown key 'cluster.price'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_told(tmp_path: Path, content: str, message: str):
    file = tmp_path / "cluster.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        headrace("ownership", str(file))


_EC2: dict[str, Any] = {"region": "x", "image": "ami-1", "instance_types": ["g5.xlarge"]}
_EC2 |= {"markets": ["spot"]}


_NODES = 2
_ONE = Interruptions(per_hour=0.05, source="somebody")
_KNOWN = {"step_s": 3.0, "start_s": 120.0}


def _recipe(*changes: str) -> Recipe:
    return load_recipe("digits", ("trainer.checkpoint_every_steps=100", *changes))


@pytest.mark.parametrize(
    ("changes", "times", "steps", "seconds"),
    [
        ((), _KNOWN, 50.0, 270.0),
        (("trainer.checkpoint_every_steps=20",), _KNOWN, 10.0, 150.0),
        (("trainer.max_steps=30",), _KNOWN, 15.0, 165.0),
        ((), {"start_s": 120.0}, 50.0, 120.0),
        ((), {"step_s": 3.0}, 50.0, 450.0),
    ],
)
def test_half_of_what_lies_between_two_checkpoints_is_done_again(
    changes: tuple[str, ...], times: dict[str, float], steps: float, seconds: float
):
    """pains 23."""
    found = expected_loss(_recipe(*changes), _NODES, _ONE, **times)
    assert (found.steps, found.seconds) == (steps, seconds)


def test_all_nodes_of_a_gang_are_interrupted_when_one_is():
    found = expected_loss(_recipe(), _NODES, _ONE, **_KNOWN)
    assert found.per_hour == pytest.approx(0.1)
    assert found.share == pytest.approx(27 / 3627)  # 0.1 x 270 s for each hour of work


def test_the_line_says_what_is_known_and_what_is_assumed():
    loss = expected_loss(_recipe(), _NODES, _ONE, **_KNOWN)
    told = loss_in_words(_recipe(), _NODES, _ONE, loss)
    assert told == (
        "spot: an interruption costs a start of 0:02:00 and, if its notice does not come in "
        "time, 0:02:30: 50 steps (half of trainer.checkpoint_every_steps, 100); 0.1 "
        "interruptions per hour of 2 nodes (somebody) take 0.74 % of the time"
    )
    often = Interruptions(per_hour=1.0, source="somebody")
    recipe = _recipe("trainer.max_steps=30")
    told = loss_in_words(recipe, _NODES, often, expected_loss(recipe, _NODES, often))
    assert "a start of 0:05:00 (assumed) and" in told
    assert "15 steps (half of trainer.max_steps, 30: no checkpoint comes before)" in told
    assert "2 interruptions per hour of 2 nodes (somebody) take at " in told
    assert told.endswith("take at least 14 % of the time")


def test_what_a_script_loses_is_its_own():
    recipe = _recipe()
    train = recipe.train.model_copy(update={"script": "train.py"})
    recipe = recipe.model_copy(update={"model": None, "train": train})
    loss = expected_loss(recipe, _NODES, _ONE, **_KNOWN)
    assert loss.seconds == 120.0
    assert "two checkpoints of the script" in loss_in_words(recipe, _NODES, _ONE, loss)


def test_plan_reckons_with_earlier_runs(headrace_home: Path):
    gang = {"backend": "ec2", "kind": "gang", "nodes": 2, "ec2": _EC2}
    write_site(headrace_home, "spot", roles=built_in("sites", "laptop")["roles"] | {"gpu": gang})
    run = make_run(site="spot")
    lease_id = lease_on_disk(run, "gpu")
    record = open_ledger().latest_lease(f"{run.run_id}/gpu")
    ready_at = record.created_at + 90.0
    open_ledger().set_lease_state(lease_id, LeaseState.READY, ready_at=ready_at)
    values = {"state": StepState.SUCCEEDED, "started_at": 1000.0, "finished_at": 1200.0}
    attempt_row_of(run, "train", lease_id, **values, outputs={"steps": 100})
    shown = headrace("plan", "digits", "--site", "spot", "trainer.checkpoint_every_steps=100")
    assert shown.exit_code == 0, shown.output
    (line,) = [each for each in shown.stdout.splitlines() if "spot: " in each]
    assert "a start of 0:01:30 and" in line
    assert "0:01:40: 50 steps" in line
