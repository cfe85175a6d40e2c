"""Which budgets a run is under, and how much of each is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.errors import HeadraceError
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import load_site
from headrace.recipe.site import Limits
from headrace.runs.costs import run_cost
from headrace.runs.provenance import user_of
from headrace.runs.runs import Run


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit of what may be spent."""

    key: str
    """What it is written as."""
    usd: float
    """The limit, US dollars."""
    place: str
    """Where it is written: `site NAME`, `recipe NAME`."""
    whose: str
    """Whose spending it limits, for the user."""
    spent: Callable[[float], float]
    """What is spent so many seconds from now, if what runs goes on."""
    is_shared: bool = False
    """Whether other runs spend of it, too."""

    @property
    def why(self) -> str:
        """Why a lease ends that it does not hold any more."""
        whose = self.whose if self.is_shared else "the run"
        place = self.place.split()[0]
        return f"{whose} has used up its budget of ${self.usd:.2f} (`{self.key}` of the {place})"

    def next_step(self, run_id: str) -> str:
        """What to do when it is used up."""
        if self.place.startswith("site "):
            return f"Raise it in the site file, then: headrace resume {run_id}"
        return f"What has ended is kept: headrace results {run_id}. Start another suite for more."


def limits_of(run: Run) -> Limits:
    """The limits of a run's site as it says now, so that they can be raised."""
    try:
        site = load_site(run.request.site)
    except HeadraceError:  # it was renamed, or lies elsewhere: what the run was made with
        return run.site.limits
    return (site if site.name == run.site.name else run.site).limits


def budgets_of(run: Run) -> list[Budget]:
    """The budgets that a run is under, its own first."""
    limits, site = limits_of(run), run.site.name
    suite = None if run.recipe.suite is None else run.recipe.suite.budget
    user = user_of(run.folder, run.request.owner)
    of_run, of_site = partial(_of_run, run), partial(_of_month, run, site_name=site)
    own, at = f"Run {run.run_id}", f"site {site}"
    shared: dict[str, Any] = {"place": at, "is_shared": True}
    month, theirs = f"Site {site} this month", f"User {user} this month on site {site}"
    found = [
        (limits.budget, {"key": "limits.budget", "place": at, "whose": own, "spent": of_run}),
        (suite, {"key": "suite.budget", "place": f"recipe {run.recipe.name}", "whose": own,
                 "spent": of_run}),
        (limits.budget_month, {"key": "limits.budget_month", "whose": month, "spent": of_site,
                               **shared}),
        (limits.budget_user, {"key": "limits.budget_user", "whose": theirs,
                              "spent": partial(of_site, owner=user), **shared}),
    ]  # fmt: skip
    return [Budget(usd=usd, **values) for usd, values in found if usd is not None]


def _of_run(run: Run, ahead_s: float) -> float:
    cost = run_cost(run.run_id, time.time() + ahead_s)
    return 0.0 if cost is None else cost.usd


def _of_month(run: Run, ahead_s: float, **only: Any) -> float:
    """What usage tells of the month, and what the run will have cost more by then."""
    month = time.strftime("%Y-%m-01", time.gmtime())
    total = sum(each.usd for each in open_ledger().usage_sums(None, since=month, **only))
    return total + max(_of_run(run, ahead_s) - _of_run(run, 0.0), 0.0)
