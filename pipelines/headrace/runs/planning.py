"""Budgets, time limits and forecasts, which another package adds; none without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial

from headrace.batch.system import system_of
from headrace.clusters.lease_records import MOST_S, Walltime, shown
from headrace.entry_points import load_group
from headrace.errors import BatchError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.informing import DECISION_S, inform
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.teams import Sites
from headrace.runs.costs import BudgetRow
from headrace.runs.parts import sites_of
from headrace.runs.planned_steps import steps_of
from headrace.runs.prediction import Ahead, Frontier, Prediction, StepSeen
from headrace.runs.runs import Run
from headrace.steps.step_kinds import StepOptions

ENFORCED_EVERY_S = 30.0
"""Seconds between two checks of the budgets of a run."""

AHEAD_S = 90.0
"""A run is stopped this many seconds before its budget is reached: a checkpoint takes time. The
rest must pay a lease for as long, else it is not started."""

GROUP = "headrace.accounts"
"""Entry point: a class that derives from `Planner`."""


class Planner:
    """Enforces budgets and forecasts durations; this base class does neither."""

    def check(self, run: Run, role_name: str) -> None:
        """Refuse a lease that exceeds a budget.

        Raises:
            BudgetError: A budget is used up, or prices for it are unknown.
        """

    def enforce(self, run: Run) -> None:
        """End the leases of a run when a budget is about to be used up."""

    def budgets(self, sites: Sites) -> Iterable[BudgetRow]:
        """Return the budgets of sites."""
        return ()

    def walltime(
        self, recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
    ) -> Walltime | None:
        """Return the time limit of a run's next lease, or a new run's first; None: no forecast."""
        return None

    def loss(self, recipe: Recipe, site: Site, role_name: str) -> str:
        """Return the mean cost of interruptions of a training on a role; empty if unknown."""
        return ""

    def predict(
        self, recipe: Recipe, site: Site, kind: str, options: StepOptions | None = None
    ) -> Prediction:
        """Return the forecast of a run of this kind."""
        return Prediction(unknown=tuple(step.name for step in steps_of(recipe, kind)))

    def ahead(self, folder: RunFolder, steps: Sequence[StepSeen]) -> Ahead | None:
        """Return the forecast of a running run; None without a forecast."""
        return None

    def frontier(self, recipe: Recipe, sites: Sequence[Site]) -> Frontier:
        """Return forecasts of a suite over several sites; no points and why, if there are none."""
        return Frontier(points=(), source="No package forecasts it")


@cache
def planner() -> Planner:
    """Return the planner that a package adds, the last by name if several do; else `Planner`."""
    classes: list[type[Planner]] = [Planner, *load_group(GROUP).values()]
    return classes[-1]()


def longest(role: Role) -> Walltime:
    """Return the longest time limit that a lease of a role may have, and who sets it.

    Side effects: asks the batch system.
    """

    def limit(seconds: float, whose: str) -> Walltime:
        return Walltime(seconds=seconds, most_s=seconds, why=whose)

    system, own, silence = system_of(role), role.lifetime_max, ""
    try:
        longest_s = system.longest_job_s(role.batch)
    except BatchError as error:
        longest_s, silence = None, f" ({error.what})"
    if longest_s is not None and longest_s <= (own or longest_s):
        return limit(longest_s, f"{system.name}'s longest job, {shown(longest_s)}")
    if own is not None:
        return limit(own, f"`lifetime_max`, {shown(own)}")
    return limit(MOST_S, f"headrace's default of a day: {system.name} reports no limit{silence}")


def walltime_of(
    recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
) -> Walltime | None:
    """Return the time limit of a run's next lease, or a new run's first; None: the site says it.

    Without a forecast it is the longest that the role may have.
    """
    role = site.roles[role_name]
    if not isinstance(role.lifetime, str):
        return None
    asked = partial(planner().walltime, recipe, site, role_name, kind, run)
    folder = None if run is None else run.folder
    found = inform(folder, "forecast of the time limit", asked, Walltime, DECISION_S)
    if found is not None and 0 < found.seconds <= found.most_s:
        return found
    most = longest(role)
    return most.model_copy(update={"why": f"the longest, without a forecast: {most.why}"})


def predicted(recipe: Recipe, site: Site, kind: str) -> Prediction:
    """Return the forecast of a run of a kind; all is unknown if the forecast fails."""
    asked = partial(planner().predict, recipe, site, kind)
    return inform(None, "forecast", asked, Prediction) or Planner().predict(recipe, site, kind)


def note_prediction(run: Run) -> None:
    """Write the forecast of a run to its folder, unless it exists; it only informs."""
    file, asked = run.folder.prediction, run.request

    def forecast() -> Prediction | None:
        if asked.kind == "part" or read_record(file, Prediction) is not None:
            return None  # the trials of a part come later
        return planner().predict(run.recipe, run.site, asked.kind, asked.options)

    if found := inform(run.folder, "forecast", forecast, Prediction):
        inform(run.folder, "forecast", partial(write_record, file, found))
    if asked.kind == "suite" and run.recipe.suite is not None and run.recipe.suite.sites:
        sites = [each.site for each in sites_of(run.folder).values()]
        asked_of = partial(planner().frontier, run.recipe, sites)
        shown = inform(run.folder, "frontier", asked_of, Frontier, DECISION_S)
        if shown is not None and shown.points:
            inform(run.folder, "frontier", partial(write_record, run.folder.frontier, shown))
