"""What is foretold of work and what it may cost, by another package; nothing without one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Literal

from headrace.batch.registry import system_of
from headrace.clusters.lease_records import MOST_S, Walltime, shown
from headrace.entry_points import load_group
from headrace.errors import BatchError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder
from headrace.informing import DECISION_S, inform
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Role, Site
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.planned_steps import steps_of
from headrace.runs.prediction import Ahead, Prediction, StepSeen
from headrace.runs.runs import Run
from headrace.steps.step_kinds import StepOptions

ENFORCED_EVERY_S = 30.0
"""Time between two looks at the budgets of a run."""

GROUP = "headrace.accounts"
"""Entry point: a class that derives from `Planner`."""


class BudgetRow(Record):
    """What may be taken of a site in a month."""

    key: str
    """As in the site file: `limits.budget_month`, `limits.gpu_hours_team`."""
    site: str
    whose: str
    """User or team; empty for all of the site."""
    unit: Literal["usd", "gpu_hours"]
    most: float
    spent: float


class Planner:
    """Keeps budgets, and foretells how long work takes; this one keeps and foretells nothing."""

    def check(self, run: Run, role_name: str) -> None:
        """Refuse a lease that a budget does not hold.

        Raises:
            BudgetError: One is used up, or nobody knows the prices with which to keep it.
        """

    def enforce(self, run: Run) -> None:
        """End the leases of a run when a budget is about to be used up."""

    def budgets(self, sites: Sites) -> Iterable[BudgetRow]:
        """What may be taken of the sites that are known here, some or all."""
        return ()

    def walltime(
        self, recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
    ) -> Walltime | None:
        """Return the time limit of a run's next lease, or a new run's first; None: no forecast."""
        return None

    def loss(self, recipe: Recipe, site: Site, role_name: str) -> str:
        """What interruptions of a training on a role cost on average; empty: nothing tells."""
        return ""

    def predict(
        self, recipe: Recipe, site: Site, kind: str, options: StepOptions | None = None
    ) -> Prediction:
        """What a run of this kind will take."""
        return Prediction(
            seconds=None,
            half_s=None,
            parts=(),
            unknown=tuple(step.name for step in steps_of(recipe, kind)),
            gpu_hours=None,
            num_bytes=None,
            made_at=time.time(),
        )

    def ahead(self, folder: RunFolder, steps: Sequence[StepSeen]) -> Ahead | None:
        """What a run that goes on was expected to take, and still will; None: nobody said."""
        return None


@cache
def planner() -> Planner:
    """What a package adds, else `Planner`; the last one by name, of several."""
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
    return limit(MOST_S, f"the day that headrace takes where {system.name} tells no limit{silence}")


def walltime_of(
    recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
) -> Walltime | None:
    """Return the time limit of a run's next lease, or a new run's first; None: the site says it.

    It is the longest that the role may have if there is no forecast.
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
    return most.model_copy(update={"why": f"there is no forecast, so the longest: {most.why}"})


def predicted(recipe: Recipe, site: Site, kind: str) -> Prediction:
    """Return what a run of a kind would take; nothing is known if the forecast fails."""
    asked = partial(planner().predict, recipe, site, kind)
    return inform(None, "forecast", asked, Prediction) or Planner().predict(recipe, site, kind)


def note_prediction(run: Run) -> None:
    """Write what a run is expected to take to its folder, unless it is there; it only informs."""
    file, asked = run.folder.prediction, run.request

    def forecast() -> Prediction | None:
        if read_record(file, Prediction) is not None:
            return None
        return planner().predict(run.recipe, run.site, asked.kind, asked.options)

    if found := inform(run.folder, "forecast", forecast, Prediction):
        inform(run.folder, "forecast", partial(write_record, file, found))
