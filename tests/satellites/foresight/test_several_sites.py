"""Suites over several sites in simulated time, with the planner of their driver."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.suites.site_plan import Plan, PlanInput, plan
from headrace_foresight.durations import filling
from headrace_foresight.forecast import Forecast
from headrace_foresight.scenario import Nodes, Outcome, Scenario, SimulatedJob
from headrace_foresight.simulate import simulate
from headrace_foresight.simulated_sites import planned_site
from headrace_foresight.what_if import Place, Question, answer

HOUR_S, DAY_S = 3600.0, 86_400.0

LAB = Nodes(site="lab", count=8)
BOX = Nodes(site="box", count=8)
PART = Nodes(site="part", count=16, queue_s=2 * HOUR_S, walltime_s=12 * DAY_S)
AWS = Nodes(
    site="aws", count=60, is_own=False, usd_per_hour=0.752, boot_s=180, interruptions_per_hour=0.002
)


def both(
    seconds: np.ndarray, scenario: Scenario, noise: float = 0.2, seed: int = 0
) -> tuple[Plan, Outcome]:
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


def test_a_suite_whose_budget_is_used_up_never_ends():
    aws = Scenario(nodes=(AWS,), policy="cheapest", budget_usd=20.0)
    before, came = both(SMALL, aws, noise=0.0)
    assert before.makespan_s == came.makespan_s == math.inf
    assert 15 < came.usd <= 20


def test_policies_are_compared_with_what_each_site_costs():
    aws = Place(name="aws", usd_per_hour=1.0, is_own=False, nodes=4)
    trials = [Forecast(seconds=HOUR_S)] * 10
    rows = answer(
        Question(trials=trials, places=(Place(name="lab"), aws), policies=("own-first", "spread"))
    )
    own, spread = rows
    assert (own.makespan_s.mean, own.usd and own.usd.mean) == (10 * HOUR_S, 0.0)
    assert spread.makespan_s.mean == 2 * HOUR_S
    assert spread.usd_of["aws"].mean == pytest.approx(8.0)
    assert (spread.is_fastest, own.is_cheapest) == (True, True)
    with pytest.raises(UserError, match="'fast' is not known"):
        answer(Question(trials=trials, policies=("fast",)))
