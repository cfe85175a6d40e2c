"""What a suite over several sites takes and costs, by policies and deadlines.

Durations are drawn many times; each draw is laid out by the planner of the suite's driver.
Interruptions and other waits than the expected ones are left to `headrace what-if`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from headrace.batch.meter import meter_of
from headrace.multi_site.sites import LEAST_PAID_S, slots_of
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
from headrace_foresight.work_ahead import forecasts_at

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
    planned = [_planned(recipe, site, speeds[site.name]) for site in sites]
    curve = _Curve(recipe.suite or SuiteSpec(), planned, trials)  # at speed 1 on the first known
    points = tuple(curve.points())
    source = f"{len(trials)} trials, by {found[name][1]} earlier runs or trials on {name}"
    return Frontier(
        points=points,
        sites=tuple(
            ExpectedSite(
                site=each.name,
                slots=each.slots,
                start_s=each.start_s,
                speed=each.speed,
                usd_per_hour=each.usd_per_hour,
            )
            for each in planned
        ),
        source=source if points else "Within its budget the suite never ends",
    )


def _planned(recipe: Recipe, site: Site, speed: float) -> PlannedSite:
    """Return a site before it is used."""
    slots, usd = slots_of(recipe, site)
    is_own = meter_of(site.roles[recipe.train.role]) is None
    most = recipe.suite.max_running if recipe.suite else None
    return PlannedSite(
        name=site.name,
        slots=min(slots, most or slots),
        is_own=is_own,
        usd_per_hour=usd or 0.0,
        start_s=trial_order(recipe).start_s(site, recipe.train.role),
        speed=speed,
        min_paid_s=0.0 if is_own else LEAST_PAID_S,
    )


class _Curve:
    """Plans of draws of the trials' durations."""

    def __init__(
        self, suite: SuiteSpec, sites: Sequence[PlannedSite], trials: list[Forecast]
    ) -> None:
        self._sites, self._suite = tuple(sites), suite
        draws: Floats = possible(np.random.default_rng(0), trials, _DRAWS).T
        if suite.order == "longest":
            draws = -np.sort(-draws, axis=1)
        self._draws = [tuple(enumerate(map(float, seconds), 1)) for seconds in draws]

    def points(self) -> Iterator[FrontierPoint]:
        """Yield a point for each policy, then those with deadlines."""
        policies: tuple[Policy, ...] = get_args(Policy)
        plain = {each: [*self._point(each)] for each in policies}
        yield from itertools.chain(*plain.values())
        ends_s = {policy: each.makespan_s.mean for policy, some in plain.items() for each in some}
        for policy, end_s in ends_s.items():
            least_s = ends_s.get("spread", math.inf) / 0.9
            if least_s < end_s:
                for each in np.geomspace(least_s, end_s, _DEADLINES, endpoint=False):
                    yield from self._point(policy, float(each))
        if self._suite.deadline is not None:
            yield from self._point(self._suite.policy, self._suite.deadline)

    def _point(self, policy: Policy, deadline_s: float | None = None) -> Iterator[FrontierPoint]:
        """Yield a point, or nothing if the suite never ends, by its budget."""
        budget = self._suite.budget
        plans = [
            plan(
                PlanInput(
                    sites=self._sites,
                    waiting=waiting,
                    policy=policy,
                    left_s=math.inf if deadline_s is None else deadline_s,
                    budget_usd=math.inf if budget is None else budget,
                )
            )
            for waiting in self._draws
        ]
        if any(each.makespan_s == math.inf for each in plans):
            return
        yield FrontierPoint(
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
