"""Budgets: a lease that would exceed one is not started, and open ones are stopped in order."""

from __future__ import annotations

import logging
import time
from functools import cache
from pathlib import Path
from typing import Any

from headrace.clusters import lease_client
from headrace.errors import BudgetError, UserError
from headrace.files.atomic import is_there, read_record, write_marker
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.files.lines import read_lines
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord, RunRecord
from headrace.runs.audit import Actor
from headrace.runs.costs import BudgetRow, run_cost
from headrace.runs.planning import AHEAD_S, ENFORCED_EVERY_S
from headrace.runs.runs import Run, open_run
from headrace.runs.suites import ask, is_suite
from headrace.states import DRIVER_ROLE
from headrace.suites.records import Control, SuiteSummary
from headrace_foresight.allowances import MEASURES, USD, Measure, Most, allowances, usd_of_run

logger = logging.getLogger(__name__)

_GRACE_S = 60.0
"""Leases that have not stopped by themselves are closed after this many seconds."""

_WARN_SHARE = 0.8
_logged: set[tuple[str, str, str]] = set()
"""Runs, budgets, and the warnings about them that this process has logged."""


def check(run: Run, role_name: str) -> None:
    """Raise if a lease would exceed a budget; a lease without costs never does.

    Warn how much the lease may cost beyond the rest of a budget.

    Raises:
        BudgetError: A budget is used up, or it needs prices that are unknown.
        UserError: The file of teams, whose budgets count, is unusable.
    """
    role, budgets = run.site.roles[role_name], budgets_of(run)
    most_of = {unit: MEASURES[unit].most(role) for unit in {budget.unit for budget in budgets}}
    for budget in budgets:
        most = most_of[budget.unit]
        if most is not None:
            _check(run, role_name, budget, most)
        elif budget.measure is USD:
            words = f"Role {role_name} has no price, and is not limited by `{budget.key}`"
            _log_once(run, budget, role_name, words)


def _check(run: Run, role_name: str, budget: Budget, most: Most) -> None:
    measure, cost = budget.measure, run_cost(run.run_id)
    if most.amount is None or (measure is USD and cost is not None and cost.unpriced):
        why = most.why if most.amount is None else "machines of the run have no known price"
        raise BudgetError(
            f"`{budget.key}` of {measure.shown(budget.most)} cannot be kept for role {role_name}: "
            f"{why}",
            f"Give the price, or remove `{budget.key}` from the {budget.place.split()[0]}.",
        )
    lifetime_s = run.site.roles[role_name].lifetime_s
    first_s = min(AHEAD_S, lifetime_s)
    first = most.amount * first_s / lifetime_s
    if budget.spent + first >= budget.most:
        has, may, _ = measure.verbs
        raise BudgetError(
            f"{budget.subject} has {has} {measure.shown(budget.spent)}, and `{budget.key}` of "
            f"{budget.place} is {measure.shown(budget.most)}: no further lease of role {role_name} "
            f"is started, because its first {first_s:.0f} s may {may} {measure.shown(first)} "
            f"({most.why})",
            budget.next_step,
        )
    _warn_ahead(run, role_name, most.amount, budget)


def _warn_ahead(run: Run, role_name: str, amount: float, budget: Budget) -> None:
    """Warn if a lease may use up a budget, and how much is spent beyond it."""
    _warn(run, budget)
    left = budget.most - budget.spent
    if amount <= left:
        return
    late_s = _GRACE_S + ENFORCED_EVERY_S
    beyond, then = amount * late_s / run.site.roles[role_name].lifetime_s, "is stopped in order"
    if run.site_now.limits.when_over == "finish":
        beyond, then = amount - left, "continues to its end, and no more begins"
    shown = budget.measure.shown
    logger.warning(
        "A lease of role %s %s %s at most, and %s is left of `%s`: when that is used up, "
        "running work %s, for at most %s more",
        role_name, budget.measure.verbs[2], shown(amount), shown(left), budget.key, then,
        shown(min(beyond, amount - left)),
    )  # fmt: skip


def enforce(run: Run) -> None:
    """End the leases of a run when a budget is nearly used up.

    Training stops with a checkpoint, as at the end of a lease's lifetime. A gang that does not end
    by itself is closed a minute later, a pool at once. With the site's `when_over: finish`, running
    work continues and a suite is paused, of several sites only this one; its lease ends with its
    last trial. The driver of several sites goes on: others may have no price.
    """
    try:
        budgets = budgets_of(run)
    except UserError as error:  # such as a file of teams while it is written
        logger.warning("Budgets are not checked at present: %s", error)
        return
    for budget in budgets:
        _warn(run, budget)
    over = next((each for each in budgets if each.soon >= each.most), None)
    if over is None or (run.site_now.limits.when_over == "finish" and _goes_on(run, over)):
        return
    for lease in open_ledger().leases(run_id=run.run_id):
        if lease.state.is_active and lease.role != DRIVER_ROLE:
            _end_in_order(run, lease, over.why)


def _goes_on(run: Run, over: Budget) -> bool:
    """Whether work runs that may continue to its end; a suite, or its site, is paused."""
    record = open_ledger().run(run.run_id)
    suite = open_ledger().run(record.part_of) if record.part_of else record
    if not is_suite(suite) or (suite is record and run.recipe.suite and run.recipe.suite.sites):
        return True  # over several sites each part keeps the budgets
    summary = read_record(run.folder.summary, SuiteSummary) or SuiteSummary(total=0)
    more: dict[str, Any] = {}
    if suite is record:
        what, is_paused = "pause", summary.paused
    else:  # the suite's driver plans within `suite.budget` itself
        what, more = "pause-site", {"site": run.site.name}
        is_paused = over.key == "suite.budget" or _is_site_paused(suite, run.site.name)
    if not is_paused and not suite.state.is_final:
        by = Actor.here()._replace(user="headrace")
        ask(suite, what, by=by, details="its budget is over", **more)
    return bool(summary.running) or not is_paused


def _is_site_paused(suite: RunRecord, site: str) -> bool:
    """Whether the last command that pauses or resumes a site of a suite pauses it."""
    commands = read_lines(RunFolder(Path(suite.folder)).controls, Control)
    asked = [each.what for each in commands if each.site == site and each.what != "limit-site"]
    return bool(asked) and asked[-1] != "resume-site"


def _warn(run: Run, budget: Budget) -> None:
    """Warn once that most of a budget has been spent."""
    if budget.spent >= _WARN_SHARE * budget.most:
        spent, most = budget.measure.shown(budget.spent), budget.measure.shown(budget.most)
        words = f"{budget.subject} has {budget.measure.verbs[0]} {spent} of the {most} of "
        _log_once(run, budget, "spent", f"{words}`{budget.key}`")


def _log_once(run: Run, budget: Budget, what: str, words: str) -> None:
    if (key := (run.run_id, budget.key, what)) not in _logged:
        _logged.add(key)
        logger.warning("%s", words)


def _end_in_order(run: Run, lease: LeaseRecord, why: str) -> None:
    folder = LeaseFolder(Path(lease.folder))
    if not is_there(folder.spec) or is_there(folder.close):
        return
    if run.site.roles[lease.role].kind == "pool":
        lease_client.request_close(folder, why)
    elif not is_there(folder.notice):
        logger.warning("Lease %s ends: %s", lease.lease_id, why)
        write_marker(folder.notice, why)
    elif time.time() - folder.notice.stat().st_mtime >= _GRACE_S:
        lease_client.request_close(folder, why)


class Budget(BudgetRow):
    """A limit of spending, as it concerns a run; also `suite.budget` of its recipe."""

    place: str
    """Where it is written: `site NAME`, `recipe NAME`."""
    subject: str
    """Whose spending it limits, for the user."""
    run_id: str
    """The run; of a part, its suite."""
    soon: float
    """Spent `AHEAD_S` from now, if the run's work continues."""
    is_shared: bool = False
    """Whether other runs spend it, too."""

    @property
    def measure(self) -> Measure:
        """Its unit."""
        return MEASURES[self.unit]

    @property
    def why(self) -> str:
        """Why a lease is ended that exceeds it."""
        whose = self.subject if self.is_shared else "the run"
        limit = f"{self.measure.limit}{self.measure.shown(self.most)}"
        return f"{whose} has used up its {limit} (`{self.key}` of the {self.place.split()[0]})"

    @property
    def next_step(self) -> str:
        """Return what to do when it is used up."""
        if self.place.startswith("site "):
            return f"Raise it in the site file, then: headrace resume {self.run_id}"
        return (
            f"Ended trials are kept: headrace results {self.run_id}. Start another suite for more."
        )


def budgets_of(run: Run) -> list[Budget]:
    """Return the budgets of a run, its own first.

    Raises:
        UserError: The file of teams, whose budgets count, is unusable.
    """
    site = run.site_now
    suite_id = open_ledger().run(run.run_id).part_of
    whole = open_run(suite_id) if suite_id else run  # all sites share the budget of a suite
    at, suite = f"site {site.name}", whole.recipe.suite
    own = [("limits.budget", site.limits.budget, at, run.run_id)]
    if suite is not None:
        own.append(("suite.budget", suite.budget, f"recipe {whole.recipe.name}", whole.run_id))
    now_and_soon = cache(lambda measure: (measure.of_run(run, 0.0), measure.of_run(run, AHEAD_S)))
    found = []
    for key, most, place, run_id in own:
        if most is not None:
            spent, soon = (
                usd_of_run(run_id, ahead_s, whole=key == "suite.budget")
                for ahead_s in (0.0, AHEAD_S)
            )
            found.append(
                Budget(
                    key=key,
                    site=site.name,
                    whose="",
                    unit="usd",
                    most=most,
                    spent=spent,
                    place=place,
                    subject=f"Run {run_id}",
                    run_id=whole.run_id,
                    soon=soon,
                )
            )
    for each in allowances(site, run.user):
        before, after = now_and_soon(MEASURES[each.unit])
        kind = "Team" if each.key.endswith("_team") else "User"
        subject = f"{kind} {each.whose} this month on {at}"
        found.append(
            Budget(
                **dict(each),
                place=at,
                subject=subject if each.whose else f"Site {site.name} this month",
                run_id=whole.run_id,
                soon=each.spent + max(after - before, 0.0),
                is_shared=True,
            )
        )
    return found
