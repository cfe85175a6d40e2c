"""Suites over several sites in simulated time, with the planner of their driver."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.files.atomic import write_record
from headrace.ledger.ledger import open_ledger
from headrace.multi_site.parts import make_part
from headrace.recipe.load import load_recipe
from headrace.runs.planning import note_prediction
from headrace.runs.prediction import (
    ExpectedSite,
    Forecast,
    Frontier,
    FrontierPoint,
    Interval,
)
from headrace.runs.runs import open_run
from headrace.states import LeaseState
from headrace.suites.records import Assigned
from headrace.suites.site_plan import PlanInput, SitesPlan, plan
from headrace.suites.suite_state import SuiteState
from headrace_foresight.durations import filling
from headrace_foresight.past_attempts import is_alike, recipe_of
from headrace_foresight.scenario import Nodes, Outcome, Scenario, SimulatedJob
from headrace_foresight.simulate import simulate
from headrace_foresight.simulated_sites import planned_site
from headrace_foresight.site_outcomes import site_outcomes
from headrace_foresight.site_pace import speeds_of
from headrace_foresight.suite_order import ForecastOrder
from headrace_foresight.trial_forecast import expected_of
from headrace_foresight.what_if import Question, answer
from headrace_foresight.work_ahead import nodes_of
from support import suite_journal
from support.command_line import headrace
from support.factories import built_in, write_site
from support.many_sites import packed_suite
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run

HOUR_S, DAY_S = 3600.0, 86_400.0

LAB = Nodes(site="lab", count=8)
BOX = Nodes(site="box", count=8)
PART = Nodes(site="part", count=16, queue_s=2 * HOUR_S, walltime_s=12 * DAY_S)
AWS = Nodes(
    site="aws", count=60, is_own=False, usd_per_hour=0.752, boot_s=180, interruptions_per_hour=0.002
)


def both(
    seconds: np.ndarray, scenario: Scenario, noise: float = 0.2, seed: int = 0
) -> tuple[SitesPlan, Outcome]:
    """Return what the planner forecasts, and what comes if durations differ from the expected."""
    random = np.random.default_rng(seed)
    sites = {kind.site: kind for kind in scenario.nodes}
    before = plan(
        PlanInput(
            sites=tuple(planned_site([kind], 1, scenario.restart_s) for kind in sites.values()),
            waiting=tuple((rank, float(each)) for rank, each in enumerate(seconds)),
            policy=scenario.policy or "spread",
            left_s=scenario.deadline_s,
            budget_usd=scenario.budget_usd,
        )
    )
    true = seconds * np.exp(noise * random.standard_normal(len(seconds)) - noise**2 / 2)
    jobs = [
        SimulatedJob(seconds=float(real), expected_s=float(believed))
        for real, believed in zip(true, seconds, strict=True)
    ]
    return before, simulate(jobs, scenario, random)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "deadline_d"),
    [("own-first", 14.0), ("cheapest", 18.0), ("spread", math.inf), ("own-first", math.inf)],
)
def test_the_study_of_1386_trials_comes_as_forecast(policy, deadline_d):
    """Trials of 1 h 2 min to 10 d 16 h that took $12,439.69 on 60 instances."""
    seconds = filling(62 * 60, 256 * HOUR_S, 1386, 16_542 * HOUR_S)
    scenario = Scenario(
        nodes=(LAB, BOX, PART, AWS),
        policy=policy,
        deadline_s=deadline_d * DAY_S,
        restart_s=60.0,
        checkpoint_s=1800.0,
    )
    before, came = both(seconds, scenario)
    assert came.makespan_s == pytest.approx(before.makespan_s, rel=0.1)
    assert came.usd == pytest.approx(before.usd, rel=0.1)
    assert came.makespan_s <= scenario.deadline_s
    assert came.usd < 12_439.69 * 0.7
    assert came.usd_of["lab"] == came.usd_of["box"] == came.usd_of["part"] == 0
    assert came.moves < len(seconds) / 5
    if policy != "own-first" or deadline_d < math.inf:
        assert came.interruptions > 0


SMALL = filling(600.0, 8 * HOUR_S, 60, 100 * HOUR_S)


def small(policy: str, **changes: object) -> Scenario:
    nodes = (replace(LAB, count=2), replace(BOX, count=2, speed=0.5), replace(AWS, count=10))
    return Scenario(nodes=nodes, policy=policy, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_deadlines_and_budgets_hold_with_other_durations_than_expected(seed):
    _, alone = both(SMALL, small("own-first"), seed=seed)
    assert alone.usd == 0
    _, quick = both(SMALL, small("spread"), seed=seed)
    assert quick.makespan_s < alone.makespan_s / 2
    until_s = alone.makespan_s * 0.6
    _, dated = both(SMALL, small("own-first", deadline_s=until_s), seed=seed)
    assert dated.makespan_s < until_s * 1.05
    assert 0 < dated.usd < quick.usd
    _, poor = both(SMALL, small("own-first", deadline_s=1.0, budget_usd=10.0), seed=seed)
    assert 5 < poor.usd <= 10.0 * 1.1
    assert quick.makespan_s < poor.makespan_s < alone.makespan_s


def test_trials_are_left_when_the_budget_is_used_up():
    aws = Scenario(nodes=(AWS,), policy="cheapest", budget_usd=20.0)
    before, came = both(SMALL, aws, noise=0.0)
    assert before.makespan_s == came.makespan_s == math.inf
    assert 15 < came.usd <= 20


def test_policies_are_compared_with_what_each_site_costs():
    aws = Nodes(site="aws", usd_per_hour=1.0, is_own=False, count=4)
    trials = [Forecast(seconds=HOUR_S)] * 10
    rows = answer(
        Question(
            trials=trials,
            places=(Nodes(site="lab", usd_per_hour=None), aws),
            policies=("own-first", "spread"),
        )
    )
    own, spread = rows
    assert (own.makespan_s.mean, own.usd and own.usd.mean) == (10 * HOUR_S, 0.0)
    assert spread.makespan_s.mean == 2 * HOUR_S
    assert spread.usd_of["aws"].mean == pytest.approx(8.0)
    assert (spread.is_fastest, own.is_cheapest) == (True, True)
    with pytest.raises(UserError, match="'fast' is not known"):
        answer(Question(trials=trials, policies=("fast",)))


@pytest.mark.parametrize(
    ("lab_usd", "box_usd", "cost"), [(None, None, "?"), (None, 1.0, "$0.00+?"), (0.0, 1.0, "$0.00")]
)
def test_a_cost_of_sites_without_a_price_is_unknown(
    headrace_home: Path, lab_usd: float | None, box_usd: float | None, cost: str
):
    for site, usd in (("lab", lab_usd), ("box", box_usd)):
        roles = built_in("sites", "laptop")["roles"]
        if usd is not None:
            roles["gpu"]["price"] = {"usd_per_node_hour": usd}
        write_site(headrace_home, site, roles=roles)
    words = (
        "what-if",
        "--duration",
        "1h",
        "--site",
        "lab",
        "--site",
        "box",
        "--policy",
        "cheapest",
    )
    shown = headrace(*words).output.splitlines()[-1]
    assert cost in shown.split()
    assert ("cheapest" in shown.split()[1:]) == (cost != "?")
    (row,) = json.loads(headrace(*words, "--json").stdout)
    assert (row["usd"] is None) == (cost == "?")
    assert (row["usd_of"]["lab"] is None) == (lab_usd is None)


def test_nodes_that_are_rented_are_used_only_for_a_deadline(headrace_home: Path):
    ec2 = {"region": "us-east-1", "image": "ami-1", "instance_types": ["g5.xlarge"]}
    ec2 |= {"prices": {"g5.xlarge": {"on-demand": 2.0}}, "prices_as_of": "2026-06-17"}
    role = {"backend": "ec2", "nodes": 4, "lifetime": "1h", "ec2": ec2}
    folder = str(headrace_home / "aws")
    write_site(headrace_home, "aws", roles={"trainer": role}, folder=folder)
    lease_id = lease_on_disk(
        make_run(site="aws", overrides=("train.role=trainer", "pack_role=trainer")), "trainer"
    )
    asked_at = open_ledger().lease(lease_id).created_at
    open_ledger().set_lease_state(lease_id, LeaseState.READY, ready_at=asked_at + 90.0)
    aws = nodes_of("aws")
    assert (aws.is_own, aws.usd_per_hour, aws.boot_s) == (False, 2.0, pytest.approx(90.0))
    sites = ("--site", "laptop", "--site", "aws", "--policy", "own-first,spread")
    shown = headrace("what-if", "--duration", "1h", "--trials", "8", *sites, "--json")
    own, spread = json.loads(shown.stdout)
    assert own["usd_of"]["aws"]["mean"] == 0 < spread["usd_of"]["aws"]["mean"]


def past_run(site: str, seconds: float) -> None:
    run = make_run(site=site, overrides=("trainer.max_epochs=4",))
    lease = lease_on_disk(run, "gpu")
    step_ended(run, "train", lease, seconds)
    step_ended(run, "evaluate", lease, seconds / 10)


TWO_SITES = ("plan", "digits", "--site", "laptop,box", "+suite.seeds=12")


def test_a_suite_over_several_sites_is_forecast_by_policies_and_deadlines(headrace_home: Path):
    roles = built_in("sites", "laptop")["roles"]
    roles["gpu"]["price"] = {"usd_per_node_hour": 36.0}
    write_site(headrace_home, "box", roles=roles)
    assert "no forecast: No earlier run shows" in headrace(*TWO_SITES).stdout
    first = make_run(kind="suite", site="laptop", overrides=("suite.sites=[laptop,box]",
                     "suite.grid.seed=[1,2]"))  # fmt: skip
    note_prediction(first)
    assert not first.folder.informing.exists()  # unknown durations are no failure
    past_run("laptop", 20.0)
    past_run("box", 10.0)
    shown = headrace(*TWO_SITES)
    assert shown.exit_code == 0, shown.output
    assert "12 trials, by 1 earlier runs or trials on laptop" in shown.output
    assert "█" * 40 in shown.output
    found = Frontier.model_validate(json.loads(headrace(*TWO_SITES, "--json").stdout)["frontier"])
    laptop, box = found.sites
    assert (laptop.speed, box.speed) == (1.0, pytest.approx(2.0, rel=0.01))
    plain = {each.policy: each for each in found.points if each.deadline_s is None}
    assert plain["cheapest"].usd.mean == 0 < plain["spread"].usd_of["box"]
    assert plain["spread"].makespan_s.mean < plain["cheapest"].makespan_s.mean / 2
    dated = [each for each in found.points if each.deadline_s is not None]
    assert {each.policy for each in dated} == {"cheapest"}  # both sites are own ones
    ends_s = [each.makespan_s.mean for each in dated]
    costs = [each.usd.mean for each in dated]
    assert ends_s == sorted(ends_s)
    assert costs == sorted(costs, reverse=True)
    assert all(each.makespan_s.low <= each.makespan_s.mean for each in found.points)


def test_trials_of_a_suite_show_how_quick_its_sites_are(headrace_home: Path):
    suite_state = SuiteState()
    order = ForecastOrder(load_recipe("digits", ()))
    assert order.speeds(["lab", "box"], suite_state) == {"lab": 1.0, "box": 1.0}
    for number in range(1, 13):
        site, seconds = ("lab", 20.0) if number % 2 else ("box", 10.0)
        epochs = 1 + number // 2 % 3
        suite_state.take(suite_journal.added(number, trainer__max_epochs=epochs))
        suite_state.take(Assigned(number=number, site=site))
        suite_state.take(suite_journal.started(number, site=site))
        times = {"started_at": 0.0, "finished_at": seconds * epochs}
        suite_state.take(suite_journal.ended(number, site=site, **times))
    speeds = speeds_of(load_recipe("digits", ()), ["lab", "box", "far"], suite_state)
    assert speeds == {"lab": 1.0, "box": pytest.approx(2.0, rel=0.15), "far": 1.0}
    suite_state.take(suite_journal.added(20, trainer__max_epochs=3))
    (at_lab,), (at_box,) = (expected_of(suite_state, each).values() for each in ("lab", "box"))
    assert at_lab / at_box == pytest.approx(2.0, rel=0.15)


def test_what_was_expected_of_each_site_stands_beside_what_came(headrace_home: Path):
    run = suite_journal.over_sites(suite_journal.make_suite())
    known = Interval(low=1.0, mean=1.0, high=1.0)
    point = FrontierPoint(policy="own-first", makespan_s=known, usd=known,
                          usd_of={"aws": 0.5, "lab": 0.0}, ends_of={"aws": 300.0})  # fmt: skip
    aws = ExpectedSite(site="aws", slots=4, start_s=60.0, speed=1.5, usd_per_hour=0.55)
    lab = ExpectedSite(site="lab", slots=4, start_s=60.0, speed=1.0, usd_per_hour=None)
    write_record(run.folder.frontier, Frontier(points=(point,), sites=(aws, lab)))
    suite_journal.journal(
        run.folder,
        suite_journal.added(1).model_copy(update={"at": 1000.0}),
        Assigned(number=1, site="aws", at=1010.0),
        suite_journal.started(1, site="aws", at=1100.0),
        suite_journal.ended(1, site="aws", started_at=1100.0, finished_at=1400.0),
    )
    found = {each.site: each for each in site_outcomes(run.folder, open_run(run.run_id).recipe)}
    pairs = {name: (pair.expected, pair.came) for name, pair in found["aws"] if name != "site"}
    assert pairs == {
        "usd": (0.5, 0.125), "ends_s": (300.0, 400.0), "start_s": (60.0, 90.0), "speed": (1.5, None)
    }  # fmt: skip
    assert (found["lab"].usd.expected, found["lab"].usd.came) == (None, 0.0)
    assert found["box"].ends_s.came is None
    assert site_outcomes(make_run().folder, run.recipe) == ()
    lease = lease_on_disk(run, "gpu")
    step_ended(run, "train", lease, 10.0)
    shown = headrace("cost", run.run_id).output
    assert "$" not in shown.splitlines()[0]
    assert "0.50, 0.12" in shown
    assert "5:00, 6:40" in shown


def test_parts_of_earlier_suites_inform_about_new_ones(headrace_home: Path) -> None:
    """Their dataset is a copy at their site; the recipe of a new suite names its source."""
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box")
    assert part.recipe.dataset != suite.recipe.dataset
    assert is_alike("train", recipe_of(part), suite.recipe)
