"""What a suite over several sites takes and costs, by policies and deadlines.

Durations are drawn many times; each draw is laid out by the planner of the suite's driver.
Interruptions and other waits than the expected ones are left to `headrace what-if`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

import numpy as np

from headrace.batch.meter import meter_of
from headrace.multi_site.sites import LEAST_PAID_S, usd_of_slot
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.suite import SuiteSpec
from headrace.runs.prediction import ExpectedSite, Forecast, Frontier, FrontierPoint
from headrace.suites.site_plan import PlanInput, PlannedSite, Policy, SitesPlan, plan
from headrace.suites.trial_order import trial_order
from headrace_foresight.forecast import Floats, possible
from headrace_foresight.past_attempts import past_of
from headrace_foresight.simulate import span
from headrace_foresight.site_pace import relative
from headrace_foresight.work_ahead import forecasts_at, places_of

Draw = tuple[tuple[int, float], ...]
"""Number and seconds of each trial."""

_DRAWS = 10
_DEADLINES = 4
"""Deadlines between the earliest end and that without a deadline."""


def frontier(recipe: Recipe, sites: Sequence[Site]) -> Frontier:
    """Return forecasts for each policy without a deadline, and for deadlines."""
    found = {site.name: forecasts_at(recipe, site, past_of(recipe, site, "part")) for site in sites}
    known = {name: trials for name, (trials, _) in found.items() if trials}
    if not known:
        why = f"No earlier run shows how long {recipe.name} takes on these sites"
        return Frontier(points=(), source=why)
    speeds = relative(known, [site.name for site in sites])
    name, trials = next(iter(known.items()))
    suite = recipe.suite or SuiteSpec()
    prices = {site.name: usd_of_slot(recipe, site) for site in sites}
    planned = tuple(
        _planned(recipe, site, speeds[site.name], prices[site.name] or 0.0) for site in sites
    )
    draws = _draws(suite, trials)  # at speed 1 on the first known site
    points = _points(suite, partial(_point, planned, draws, suite.budget))
    source = f"{len(trials)} trials, by {found[name][1]} earlier runs or trials on {name}"
    return Frontier(
        points=points,
        sites=tuple(
            ExpectedSite(
                site=each.name,
                slots=each.slots,
                start_s=each.start_s,
                speed=each.speed,
                usd_per_hour=prices[each.name],
            )
            for each in planned
        ),
        source=source if points else "Within its budget the suite never ends",
    )


def _planned(recipe: Recipe, site: Site, speed: float, usd_per_hour: float) -> PlannedSite:
    """Return a site before it is used."""
    role = site.roles[recipe.train.role]
    is_own = meter_of(role) is None
    return PlannedSite(
        name=site.name,
        slots=places_of(recipe, role),
        is_own=is_own,
        usd_per_hour=usd_per_hour,
        start_s=trial_order(recipe).start_s(site, recipe.train.role),
        speed=speed,
        min_paid_s=0.0 if is_own else LEAST_PAID_S,
    )


def _draws(suite: SuiteSpec, trials: list[Forecast]) -> list[Draw]:
    """Return possible durations of the trials, in the order in which they begin."""
    draws: Floats = possible(np.random.default_rng(0), trials, _DRAWS).T
    if suite.order == "longest":
        draws = -np.sort(-draws, axis=1)
    return [tuple(enumerate(map(float, seconds), 1)) for seconds in draws]


def _points(
    suite: SuiteSpec, point: Callable[[Policy, float | None], FrontierPoint | None]
) -> tuple[FrontierPoint, ...]:
    """Return a point for each policy, then those with deadlines."""
    plain = {each: found for each in get_args(Policy) if (found := point(each, None)) is not None}
    ends_s = {policy: each.makespan_s.mean for policy, each in plain.items()}
    least_s = ends_s.get("spread", math.inf) / 0.9
    dated = [
        (policy, float(each))
        for policy, end_s in ends_s.items()
        if least_s < end_s
        for each in np.geomspace(least_s, end_s, _DEADLINES, endpoint=False)
    ]
    if suite.deadline is not None:
        dated.append((suite.policy, suite.deadline))
    return (*plain.values(), *filter(None, itertools.starmap(point, dated)))


def _point(
    sites: tuple[PlannedSite, ...],
    draws: Sequence[Draw],
    budget: float | None,
    policy: Policy,
    deadline_s: float | None,
) -> FrontierPoint | None:
    """Return a point; None if the suite never ends, by its budget."""
    plans = [
        plan(
            PlanInput(
                sites=sites,
                waiting=waiting,
                policy=policy,
                left_s=math.inf if deadline_s is None else deadline_s,
                budget_usd=math.inf if budget is None else budget,
            )
        )
        for waiting in draws
    ]
    if any(each.makespan_s == math.inf for each in plans):
        return None
    return FrontierPoint(
        policy=policy,
        deadline_s=deadline_s,
        makespan_s=span([each.makespan_s for each in plans]),
        usd=span([each.usd for each in plans]),
        usd_of=_means(plans, "usd"),
        ends_of=_means(plans, "ends_s"),
    )


def _means(plans: Sequence[SitesPlan], name: str) -> dict[str, float]:
    rows = [[getattr(site, name) for site in each.sites] for each in plans]
    means = np.mean(rows, axis=0)
    return {site.name: float(mean) for site, mean in zip(plans[0].sites, means, strict=True)}
