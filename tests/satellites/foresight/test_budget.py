"""Runs end in order when they have cost what they may."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.batch.meter import Machine
from headrace.clusters import lease_client
from headrace.errors import BatchError, BudgetError, UserError
from headrace.execution.reap import reap
from headrace.files.atomic import write_record
from headrace.files.lines import read_lines
from headrace.leases.end_leases import finalize
from headrace.leases.run_leases import acquire
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import load_site
from headrace.recipe.suite import SuiteSpec
from headrace.runs.costs import run_cost
from headrace.runs.planning import AHEAD_S
from headrace.runs.refresh_usage import refresh_usage
from headrace.runs.runs import Run
from headrace.runs.site_machines import most_cost
from headrace.runs.suites import ask
from headrace.states import DRIVER_ROLE
from headrace.suites.records import Control, RunningTrial, SuiteSummary
from headrace_ec2.backend import Ec2
from headrace_ec2.meter import Ec2Meter
from headrace_foresight import budget
from support.factories import write_site
from support.ledger_rows import add_ended_lease, day, machine_row
from support.runs import lease_on_disk, make_run

_USD_PER_HOUR = 3600.0  # a dollar a second


def keep(run: Run) -> None:
    """What a run does every half minute."""
    refresh_usage(run.run_id)
    budget.enforce(run)


@pytest.fixture
def site(headrace_home: Path) -> Callable[..., None]:
    """Writes site `aws`: a pool and a gang of two nodes, a dollar a second each."""

    def write(budget_usd: float | None, limits: dict[str, Any] | None = None, **ec2: Any) -> None:
        prices = {"g5.xlarge": {"on-demand": _USD_PER_HOUR}}
        place: dict[str, Any] = {
            "region": "us-east-1",
            "image": "ami-1",
            "instance_types": ["g5.xlarge"],
        }
        place |= {"prices": prices, "prices_as_of": "2026-06-17", **ec2}
        role = {"backend": "ec2", "nodes": 2, "lifetime": "1h", "ec2": place}
        roles = {"cpu": role | {"kind": "pool"}, "gpu": role | {"kind": "gang"}}
        limits = {"budget": budget_usd, **(limits or {})}
        folder = str(headrace_home / "aws")
        write_site(headrace_home, "aws", roles=roles, limits=limits, folder=folder)

    return write


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> list[Machine]:
    """What EC2 tells of any lease; no host is started, and EC2 itself never asked."""
    found: list[Machine] = []
    monkeypatch.setattr(Ec2Meter, "machines", lambda _self, _name: tuple(found))
    monkeypatch.setattr(lease_client, "start", lambda *_: None)
    monkeypatch.setattr(Ec2, "reap", list)
    monkeypatch.setattr(Ec2, "refusal", lambda *_: "")
    monkeypatch.setattr(
        lease_client, "end", lambda folder, **_: lease_client.request_close(folder, "ended")
    )
    return found


def _instance(age_s: float, machine_id: str = "i-1") -> Machine:
    return Machine(
        machine_id=machine_id,
        job="headrace-x",
        kind="g5.xlarge",
        market="on-demand",
        place="us-east-1a",
        started_at=time.time() - age_s,
    )


def _open_lease(role: str, **changes: Any) -> tuple[Run, Any]:
    run = make_run(site="aws", **changes)
    return run, run.lease_folder(lease_on_disk(run, role, ProcessIdentity.of()))


def test_a_run_that_has_cost_its_budget_gets_no_lease(
    site: Callable[..., None], machines: list[Machine]
):
    """The next step is to raise it, which a run that goes on sees at once."""
    site(1000.0)
    run = make_run(site="aws")
    lease_id = acquire(run, "gpu")
    open_ledger().put_machines(
        [machine_row(lease_id=lease_id, ended_at=9.0, billed_s=850.0, usd_per_hour=_USD_PER_HOUR)]
    )
    assert acquire(run, "gpu") == lease_id  # it goes on with what it has
    with pytest.raises(BudgetError) as caught:
        acquire(run, "cpu")
    assert caught.value.what == (
        f"Run {run.run_id} has cost $850.00, and `limits.budget` of site aws is $1000.00: "
        "no further lease of role cpu is started, "
        "because its first 90 s may cost $180.00 "
        "(2 x 1:00:00 x $3600 an hour of g5.xlarge (on-demand), site file of 2026-06-17)"
    )
    assert caught.value.hint == f"Raise it in the site file, then: headrace resume {run.run_id}"
    assert not BudgetError.failure_class.is_retried
    site(1100.0)
    assert acquire(run, "cpu") == f"{run.run_id}-cpu-1"


def test_a_budget_that_cannot_be_kept_is_told_before_anything_starts(
    site: Callable[..., None], machines: list[Machine]
):
    site(1000.0, prices={})
    run = make_run(site="aws")
    with pytest.raises(BudgetError, match=r"no price is known of g5\.xlarge \(on-demand\): write"):
        acquire(run, "gpu")
    assert open_ledger().leases(run_id=run.run_id) == ()
    site(None)
    assert acquire(run, "gpu")


def test_a_budget_below_one_trial_is_refused_before_anything_starts(
    site: Callable[..., None], machines: list[Machine]
):
    site(None)
    run = make_run(site="aws", overrides=("suite.seeds=2", "suite.budget=150"), kind="suite")
    with pytest.raises(BudgetError, match=r"`suite\.budget` .* its first 90 s may cost \$180\.00"):
        acquire(run, "gpu")
    assert open_ledger().leases(run_id=run.run_id) == ()


def test_all_sites_of_a_suite_share_its_budget(site: Callable[..., None], machines: list[Machine]):
    site(None)
    suite = make_run(site="aws", overrides=("suite.seeds=2", "suite.budget=1000"), kind="suite")
    parts = make_run(site="aws"), make_run(site="aws")
    for part in parts:
        open_ledger().change_run(part.run_id, kind="part", part_of=suite.run_id)
        lease_id = acquire(part, "gpu")
        spent = {"ended_at": 9.0, "billed_s": 450.0, "usd_per_hour": _USD_PER_HOUR}
        open_ledger().put_machines([machine_row(lease_id=lease_id, **spent)])
    for run in (suite, *parts):
        with pytest.raises(BudgetError, match=rf"Run {suite.run_id} has cost \$900.00") as caught:
            budget.check(run, "cpu")
        assert f"headrace results {suite.run_id}" in caught.value.hint


def test_a_budget_of_machines_without_a_price_is_told_once_to_limit_nothing(
    headrace_home: Path, caplog: pytest.LogCaptureFixture
):
    overrides = (f"dataset.source={headrace_home}", "suite.seeds=2", "suite.budget=150")
    run = make_run(overrides=overrides, kind="suite")
    budget.check(run, "gpu")
    budget.check(run, "gpu")
    assert caplog.text.count("Role gpu has no price, and is not limited by `suite.budget`") == 1


def test_a_gang_stops_with_a_checkpoint_and_the_run_ends_with_the_reason(
    site: Callable[..., None], machines: list[Machine]
):
    """Before it has cost more than it may: what runs goes on for a moment."""
    site(1000.0)
    run, folder = _open_lease("gpu")
    machines.append(_instance(1000.0 - AHEAD_S - 30.0))
    keep(run)
    assert not folder.notice.exists()
    machines.append(_instance(31.0, "i-2"))
    keep(run)
    assert folder.notice.read_text() == (
        "the run has used up its budget of $1000.00 (`limits.budget` of the site)"
    )
    assert not folder.close.exists()
    os.utime(folder.notice, (0, 0))  # nothing stopped
    reap(lambda _run: None, lambda _run, _step: False)
    assert "limits.budget" in folder.close.read_text()
    with pytest.raises(BudgetError):
        acquire(run, "gpu")


def test_a_pool_over_its_budget_closes_at_once(site: Callable[..., None], machines: list[Machine]):
    site(1000.0)
    run, folder = _open_lease("cpu")
    machines.append(_instance(1000.0))
    keep(run)
    assert "used up its budget of $1000.00" in folder.close.read_text()


def test_machines_are_counted_when_a_lease_is_settled_or_later(
    site: Callable[..., None], machines: list[Machine], monkeypatch: pytest.MonkeyPatch
):
    """pains 22, 37: also where EC2 did not answer, or the run's driver had been killed."""
    site(None)
    run, folder = _open_lease("gpu")
    row = open_ledger().lease(folder.lease_id)
    machines.append(_instance(100.0))
    other, of_other = _open_lease("cpu")
    finalize(other, open_ledger().lease(of_other.lease_id))
    assert [each.machine_id for each in open_ledger().machines(run_id=other.run_id)] == ["i-1"]

    def silent(_self: Ec2Meter, _name: str) -> tuple[Machine, ...]:
        raise BatchError("EC2 does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Ec2Meter, "machines", silent)
        finalize(run, row)
    assert open_ledger().machines(run_id=run.run_id) == ()
    reap(lambda _run: None, lambda _run, _step: False)
    (counted,) = open_ledger().machines(run_id=run.run_id)
    assert (counted.usd_per_hour, counted.ended_at) == (_USD_PER_HOUR, None)
    machines[0] = machines[0].model_copy(update={"ended_at": machines[0].started_at + 90.0})
    reap(lambda _run: None, lambda _run, _step: False)
    (ended,) = open_ledger().machines(run_id=run.run_id)
    assert ended.billed_s == 90.0
    cost = run_cost(run.run_id)
    assert cost.usd == pytest.approx(90.0)


def test_the_most_that_a_lease_costs(site: Callable[..., None]):
    site(None, markets=["spot", "on-demand"], max_price=0.5)
    most = most_cost(load_site("aws").roles["gpu"])
    assert most.usd == 7200.0
    assert most_cost(load_site("laptop").roles["gpu"]) is None


@pytest.mark.parametrize(
    ("key", "whose"),
    [
        ("budget_month", "Site aws this month"),
        ("budget_user", "User ann this month on site aws"),
        ("budget_team", "Team vision this month on site aws"),
    ],
)
def test_what_others_have_spent_this_month_counts(
    site: Callable[..., None],
    machines: list[Machine],
    headrace_home: Path,
    key: str,
    whose: str,
):
    """pains 37: of a user's budget only what that user spent, of a team's what its users did."""
    (headrace_home / "teams.yaml").write_text("vision: [eve, ann]\nspeech: [bob]\n")
    site(None, {key: 1000.0})
    earlier, run = make_run(site="aws", user="ann"), make_run(site="aws", user="ann")
    spent = {"run_id": earlier.run_id, "site_name": "aws", "owner": "ann"}
    now = {"ended_at": time.time(), **spent}
    add_ended_lease("this month", 1.0, 500.0, **now)
    add_ended_lease("long ago", 1.0, 9e9, **now | {"ended_at": day("2020-01-01")})
    add_ended_lease("elsewhere", 1.0, 9e9, **now | {"site_name": "else"})
    assert acquire(run, "gpu")
    add_ended_lease("again", 1.0, 450.0, **now | {"owner": "eve" if "team" in key else "ann"})
    with pytest.raises(BudgetError) as caught:
        acquire(run, "cpu")
    assert f"{whose} has cost $950.00, and `limits.{key}` of site aws" in caught.value.what
    if key != "budget_month":
        assert acquire(make_run(site="aws", user="bob"), "gpu")


def test_hours_of_gpus_that_are_held_are_limited(
    site: Callable[..., None], machines: list[Machine], headrace_home: Path
):
    """Of a user and of a team; machines without GPUs take none, and nobody asks for prices."""

    def limited(user: float, team: float) -> None:
        limits = {"gpu_hours_user": user, "gpu_hours_team": team, "max_leases": 9}
        site(None, limits, prices={})
        file = headrace_home / "sites" / "aws.yaml"
        content = yaml.safe_load(file.read_text())
        content["roles"]["gpu"]["batch"] = {"gpus_per_node": 2}
        file.write_text(yaml.safe_dump(content))

    limited(10.0, 12.0)
    (headrace_home / "teams.yaml").write_text("vision: [ann, bob]\n")
    run, folder = _open_lease("gpu", user="ann")
    earlier = make_run(site="aws", user="ann")
    spent = {"run_id": earlier.run_id, "site_name": "aws", "owner": "ann", "role": "gpu"}
    add_ended_lease("earlier", 5.0, None, ended_at=time.time(), **spent)
    with pytest.raises(BudgetError) as caught:
        acquire(make_run(site="aws", user="ann"), "gpu")
    assert caught.value.what == (
        "User ann this month on site aws has taken 10.00 GPU hours, and `limits.gpu_hours_user` "
        "of site aws is 10.00 GPU hours: no further lease of role gpu is started, "
        "because its first 90 s may take 0.10 GPU hours (2 x 2 GPUs)"
    )
    assert acquire(make_run(site="aws", user="ann"), "cpu")
    assert acquire(make_run(site="aws", user="bob"), "gpu")
    limited(20.0, 10.0)
    with pytest.raises(BudgetError, match=r"Team vision .* `limits\.gpu_hours_team`"):
        acquire(make_run(site="aws", user="bob"), "gpu")
    assert acquire(make_run(site="aws", user="eve"), "gpu")
    limited(20.0, 100.0)
    machines.append(_instance(2.0 * 3600.0))
    keep(run)
    assert not folder.notice.exists()
    machines.append(_instance(3.0 * 3600.0 - AHEAD_S, "i-2"))
    keep(run)
    assert folder.notice.read_text() == (
        "User ann this month on site aws has used up its 20.00 GPU hours "
        "(`limits.gpu_hours_user` of the site)"
    )


def test_a_file_of_teams_that_is_damaged_ends_nothing_and_begins_nothing(
    site: Callable[..., None],
    machines: list[Machine],
    headrace_home: Path,
    caplog: pytest.LogCaptureFixture,
):
    site(None, {"budget_team": 1000.0})
    run, folder = _open_lease("gpu")
    (headrace_home / "teams.yaml").write_text("vision: ann\n")
    machines.append(_instance(2000.0))
    keep(run)
    assert "Budgets are not checked at present" in caplog.text
    assert not folder.notice.exists()
    with pytest.raises(UserError, match=r"teams\.yaml: vision"):
        acquire(run, "cpu")


def test_most_of_a_budget_and_what_goes_beyond_it_are_told_before(
    site: Callable[..., None], machines: list[Machine], caplog: pytest.LogCaptureFixture
):
    site(1000.0)
    run, _ = _open_lease("cpu")
    machines.append(_instance(500.0))
    keep(run)
    assert "has cost" not in caplog.text
    acquire(run, "gpu")
    assert re.search(
        r"A lease of role gpu costs \$7200\.00 at most, and \$\d+\.00 is left of `limits\.budget`: "
        r"when that is used up, running work is stopped in order, for at most \$180\.00 more",
        caplog.text,
    )
    machines.append(_instance(350.0, "i-2"))
    keep(run)
    keep(run)
    assert caplog.text.count("of the $1000.00 of `limits.budget`") == 1


def test_what_runs_comes_to_its_end_where_the_site_says_so(
    site: Callable[..., None], machines: list[Machine], caplog: pytest.LogCaptureFixture
):
    site(1000.0, {"when_over": "finish"})
    run, folder = _open_lease("gpu")
    acquire(run, "cpu")
    assert "continues to its end, and no more begins, for at most $6200.00 more" in caplog.text
    machines.append(_instance(2000.0))
    keep(run)
    assert not folder.notice.exists()
    with pytest.raises(BudgetError):
        budget.check(run, "cpu")


def test_a_suite_over_its_budget_is_paused_and_its_lease_ends_with_its_last_trial(
    site: Callable[..., None], machines: list[Machine]
):
    site(None, {"when_over": "finish"})
    run, folder = _open_lease("gpu")
    suite = SuiteSpec(budget=1000.0, seeds=2)
    run = replace(run, recipe=run.recipe.model_copy(update={"suite": suite}))
    open_ledger().change_run(run.run_id, kind="suite")
    machines.append(_instance(2000.0))
    running = RunningTrial(number=1, name="a", attempt=1, node="node-0", started_at=1.0)
    write_record(run.folder.summary, SuiteSummary(total=2, running=(running,)))
    keep(run)
    (control,) = read_lines(run.folder.controls, Control)
    assert control.what == "pause"
    write_record(run.folder.summary, SuiteSummary(total=2, paused=True, running=(running,)))
    keep(run)
    assert not folder.notice.exists()
    write_record(run.folder.summary, SuiteSummary(total=2, paused=True))
    keep(run)
    assert "budget of $1000.00 (`suite.budget` of the recipe)" in folder.notice.read_text()
    with pytest.raises(BudgetError, match=r"`suite\.budget` of recipe") as caught:
        budget.check(run, "gpu")
    assert "headrace results" in str(caught.value)


def _open_part(suite: Run, role: str) -> tuple[Run, Any]:
    part, folder = _open_lease(role)
    open_ledger().change_run(part.run_id, kind="part", part_of=suite.run_id)
    return part, folder


def _several_sites(**changes: Any) -> Run:
    overrides = ("suite.sites=[aws,laptop]", "suite.seeds=2", *changes.pop("overrides", ()))
    return make_run(site="aws", overrides=overrides, kind="suite", **changes)


def test_a_site_over_its_budget_is_paused_and_its_lease_ends_with_its_last_trial(
    site: Callable[..., None], machines: list[Machine]
):
    site(1000.0, {"when_over": "finish"})
    suite = _several_sites()
    part, folder = _open_part(suite, "gpu")
    machines.append(_instance(2000.0))
    running = RunningTrial(number=1, name="a", attempt=1, node="node-0", started_at=1.0)
    write_record(part.folder.summary, SuiteSummary(total=2, running=(running,)))
    keep(part)
    keep(part)
    (control,) = read_lines(suite.folder.controls, Control)
    assert (control.what, control.site) == ("pause-site", "aws")
    assert not folder.notice.exists()
    write_record(part.folder.summary, SuiteSummary(total=2))
    keep(part)
    assert "budget of $1000.00 (`limits.budget` of the site)" in folder.notice.read_text()
    ask(open_ledger().run(suite.run_id), "resume-site", site="aws")
    keep(part)
    assert [each.what for each in read_lines(suite.folder.controls, Control)][1:] == [
        "resume-site", "pause-site"
    ]  # fmt: skip


def test_the_driver_of_several_sites_goes_on_when_their_budget_is_used_up(
    site: Callable[..., None], machines: list[Machine]
):
    site(None)
    suite = _several_sites(overrides=("suite.budget=1000",))
    driver = suite.lease_folder(lease_on_disk(suite, DRIVER_ROLE, ProcessIdentity.of()))
    part, folder = _open_part(suite, "gpu")
    machines.append(_instance(2000.0))
    keep(part)
    budget.enforce(suite)
    assert "`suite.budget` of the recipe" in folder.notice.read_text()
    assert not driver.close.exists()


def test_the_budget_of_several_sites_pauses_none_since_their_driver_plans_by_it(
    site: Callable[..., None], machines: list[Machine]
):
    """Sites without a price go on, and the driver can end the suite."""
    site(None, {"when_over": "finish"})
    suite = _several_sites(overrides=("suite.budget=1000",))
    part, folder = _open_part(suite, "gpu")
    machines.append(_instance(2000.0))
    running = RunningTrial(number=1, name="a", attempt=1, node="node-0", started_at=1.0)
    write_record(part.folder.summary, SuiteSummary(total=2, running=(running,)))
    keep(part)
    budget.enforce(suite)
    assert read_lines(suite.folder.controls, Control) == []
    assert not folder.notice.exists()
    write_record(part.folder.summary, SuiteSummary(total=2))
    keep(part)
    assert "`suite.budget` of the recipe" in folder.notice.read_text()
