"""Budgets: no lease is started that they do not hold, and open ones end in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.clusters import client
from headrace.errors import BudgetError
from headrace.files.atomic import is_there, leave_word, read_record
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import LeaseRecord
from headrace.runs.costs import most_cost, run_cost
from headrace.runs.counting import note_machines
from headrace.runs.minding import now_and_then
from headrace.runs.runs import Run
from headrace.runs.suites import ask, is_suite
from headrace.runs.usage import note_usage
from headrace.suites.records import SuiteSummary

logger = logging.getLogger(__name__)

AHEAD_S = 90.0
"""A run is stopped so long before it reaches its budget: a checkpoint takes its time."""

_GRACE_S = 60.0
"""What does not stop by itself is closed after this time."""

_EVERY_S = 30.0
_WARN_SHARE = 0.8
_told: set[tuple[str, str, str]] = set()
"""Runs, budgets, and what of them this process has warned of."""


def check(run: Run, role_name: str) -> None:
    """Refuse a lease that a budget does not hold; one that costs nothing never is.

    What the lease may cost beyond what is left of a budget is told.

    Raises:
        BudgetError: One is used up, or nobody knows the prices with which to keep it.
    """
    role = run.site.roles[role_name]
    budgets = budgets_of(run)
    most = most_cost(role) if budgets else None
    if most is None:
        for budget in budgets:
            words = f"Role {role_name} has no price, and is not limited by `{budget.key}`"
            _tell_once(run, budget, role_name, words)
        return
    cost = run_cost(run.run_id)
    for budget in budgets:
        if most.usd is None or (cost is not None and cost.unpriced):
            why = most.why if most.usd is None else "machines of the run have no known price"
            raise BudgetError(
                f"`{budget.key}` of ${budget.usd:.2f} cannot be kept for role {role_name}: {why}",
                f"Give the price, or leave `{budget.key}` out of the {budget.place.split()[0]}.",
            )
        spent = budget.spent(0.0)
        first_s = min(AHEAD_S, role.lifetime_s)
        first_usd = most.usd * first_s / role.lifetime_s
        if spent + first_usd >= budget.usd:
            raise BudgetError(
                f"{budget.whose} has cost ${spent:.2f}, and `{budget.key}` of {budget.place} "
                f"is ${budget.usd:.2f}: no further lease of role {role_name} is started, as its "
                f"first {first_s:.0f} s may cost ${first_usd:.2f} ({most.why})",
                budget.next_step(run.run_id),
            )
        _tell_ahead(run, role_name, most.usd, budget.usd - spent, budget)


def _tell_ahead(run: Run, role_name: str, usd: float, left: float, budget: Budget) -> None:
    """Tell beforehand when a lease may come to the end of a budget, and what is spent beyond it."""
    _warn(run, budget, budget.usd - left)
    if usd <= left:
        return
    late_s = _GRACE_S + _EVERY_S
    beyond, then = usd * late_s / run.site.roles[role_name].lifetime_s, "ends in order"
    if run.site_now.limits.when_over == "finish":
        beyond, then = usd - left, "comes to its end, and no more begins"
    logger.warning(
        "A lease of role %s costs $%.2f at most, and $%.2f is left of `%s`: when that is used up, "
        "what runs %s, for at most $%.2f more",
        role_name, usd, left, budget.key, then, min(beyond, usd - left),
    )  # fmt: skip


def keep(run: Run) -> None:
    """Count the machines of a run, and end its leases when a budget is about to be used up.

    Training stops with a checkpoint, as at the end of a lease's lifetime; a gang that does not end
    by itself is closed a minute later, a pool at once. Where the site says `when_over: finish`
    what runs goes on, and a suite is paused; its lease ends with its last trial.
    """
    open_leases = [each for each in open_ledger().leases(run_id=run.run_id) if each.state.is_active]
    for lease in open_leases:
        note_machines(lease)
    budgets = budgets_of(run)
    if any(budget.is_shared for budget in budgets):
        note_usage(run.run_id)
    for budget in budgets:
        _warn(run, budget, budget.spent(0.0))
    over = next((each for each in budgets if each.spent(AHEAD_S) >= each.usd), None)
    if over is None or (run.site_now.limits.when_over == "finish" and _goes_on(run)):
        return
    for lease in open_leases:
        _end_in_order(run, lease, over.why)


def _goes_on(run: Run) -> bool:
    """Whether something runs that is to come to its end; a suite begins no more trials."""
    record = open_ledger().run(run.run_id)
    if not is_suite(record):
        return True
    summary = read_record(run.folder.summary, SuiteSummary) or SuiteSummary(total=0)
    if not summary.paused and not record.state.is_final:
        ask(record, "pause")
    return bool(summary.running) or not summary.paused


def _warn(run: Run, budget: Budget, spent: float) -> None:
    """Tell once that most of a budget has been spent."""
    if spent >= _WARN_SHARE * budget.usd:
        words = f"{budget.whose} has cost ${spent:.2f} of the ${budget.usd:.2f} of `{budget.key}`"
        _tell_once(run, budget, "spent", words)


def _tell_once(run: Run, budget: Budget, what: str, words: str) -> None:
    if (told := (run.run_id, budget.key, what)) not in _told:
        _told.add(told)
        logger.warning("%s", words)


def watched(run: Run, tick: Callable[[], None]) -> Callable[[], None]:
    """A tick that also keeps the budget, now and then."""
    return now_and_then(tick, _EVERY_S, lambda: keep(run))


def _end_in_order(run: Run, lease: LeaseRecord, why: str) -> None:
    folder = LeaseFolder(Path(lease.folder))
    if not is_there(folder.spec) or is_there(folder.close):
        return
    if run.site.roles[lease.role].kind == "pool":
        client.request_close(folder, why)
    elif not is_there(folder.notice):
        logger.warning("Lease %s ends: %s", lease.lease_id, why)
        leave_word(folder.notice, why)
    elif time.time() - folder.notice.stat().st_mtime >= _GRACE_S:
        client.request_close(folder, why)


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


def budgets_of(run: Run) -> list[Budget]:
    """The budgets that a run is under, its own first."""
    limits, site = run.site_now.limits, run.site.name
    suite = None if run.recipe.suite is None else run.recipe.suite.budget
    user = run.user
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
