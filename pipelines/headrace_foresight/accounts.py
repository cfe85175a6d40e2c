"""Budgets and forecasts for the engine; modules that need NumPy are imported at the first call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.clusters.lease_records import Walltime
from headrace.files.layout import RunFolder
from headrace.recipe.backend import backend_of
from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site
from headrace.recipe.teams import Sites
from headrace.runs.costs import BudgetRow
from headrace.runs.planning import Planner
from headrace.runs.prediction import Ahead, Frontier, Prediction, StepSeen
from headrace.runs.runs import Run
from headrace.steps.step_kinds import StepOptions
from headrace_foresight import budget
from headrace_foresight.allowances import known_allowances
from headrace_foresight.prediction import ahead_of, predict


class Foresight(Planner):
    """Budgets from the ledger, and durations from earlier runs."""

    def check(self, run: Run, role_name: str) -> None:
        """Raise if a lease would exceed a budget."""
        budget.check(run, role_name)

    def enforce(self, run: Run) -> None:
        """End the leases of a run when a budget is nearly used up."""
        budget.enforce(run)

    def budgets(self, sites: Sites) -> Iterator[BudgetRow]:
        """Yield the budgets of known sites, some or all."""
        return known_allowances(sites)

    def walltime(
        self, recipe: Recipe, site: Site, role_name: str, kind: str, run: Run | None = None
    ) -> Walltime | None:
        """Return the time limit of a lease, a quantile of the forecast of its steps."""
        from headrace_foresight.lifetime import lifetime

        return lifetime(recipe, site, role_name, kind, run)

    def loss(self, recipe: Recipe, site: Site, role_name: str) -> str:
        """Return what interruptions cost a training on a role, on average."""
        role = site.roles[role_name]
        of_one = backend_of(role.backend).interruptions(role)
        if of_one is None:
            return ""
        from headrace_foresight.lifetime import expected_loss, loss_in_words, times_of

        loss = expected_loss(recipe, role.nodes, of_one, **times_of(recipe, site, role_name))
        return loss_in_words(recipe, role.nodes, of_one, loss)

    def predict(
        self, recipe: Recipe, site: Site, kind: str, options: StepOptions | None = None
    ) -> Prediction:
        """Return what a run of this kind will take, by earlier runs of the recipe on the site."""
        return predict(recipe, site, kind, options)

    def ahead(self, folder: RunFolder, steps: Sequence[StepSeen]) -> Ahead | None:
        """Return the prediction of a running run, and what is left of it."""
        return ahead_of(folder, steps)

    def frontier(self, recipe: Recipe, sites: Sequence[Site]) -> Frontier:
        """Return what a suite over several sites takes and costs, by policies and deadlines."""
        from headrace_foresight.frontier import frontier

        return frontier(recipe, sites)
