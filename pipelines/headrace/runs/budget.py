"""The budget of a run: no lease is started that it does not hold, and open ones end in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from headrace.clusters import client
from headrace.errors import BudgetError, HeadraceError, LedgerError
from headrace.files.atomic import is_there, leave_word
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import LeaseRecord
from headrace.recipe.load import load_site
from headrace.runs.costs import most_cost, run_cost
from headrace.runs.counting import note_machines
from headrace.runs.runs import Run

logger = logging.getLogger(__name__)

AHEAD_S = 90.0
"""A run is stopped so long before it reaches its budget: a checkpoint takes its time."""

_GRACE_S = 60.0
"""What does not stop by itself is closed after this time."""

_EVERY_S = 30.0


def budget_of(run: Run) -> float | None:
    """The budget of a run in US dollars: as its site says now, so that it can be raised."""
    try:
        site = load_site(run.request.site)
    except HeadraceError:  # it was renamed, or lies elsewhere: what the run was made with
        return run.site.limits.budget
    return (site if site.name == run.site.name else run.site).limits.budget


def check(run: Run, role_name: str) -> None:
    """Refuse a lease that the run's budget does not hold; one that costs nothing never is.

    Raises:
        BudgetError: It is used up, or nobody knows the prices with which to keep it.
    """
    budget = budget_of(run)
    role = run.site.roles[role_name]
    most = None if budget is None else most_cost(role)
    if budget is None or most is None:
        return
    cost = run_cost(run.run_id)
    if most.usd is None or (cost is not None and cost.unpriced):
        why = most.why if most.usd is None else "machines of the run have no known price"
        raise BudgetError(
            f"`limits.budget` of ${budget:.2f} cannot be kept for role {role_name}: {why}",
            "Give the price, or leave `limits.budget` out of the site.",
        )
    spent = 0.0 if cost is None else cost.usd
    first_s = min(AHEAD_S, role.lifetime_s)
    if spent + most.usd * first_s / role.lifetime_s >= budget:
        raise BudgetError(
            f"Run {run.run_id} has cost ${spent:.2f}, and `limits.budget` of site {run.site.name} "
            f"is ${budget:.2f}: no further lease of role {role_name} is started ({most.why})",
            f"Raise it in the site file, then: headrace resume {run.run_id}",
        )


def keep(run: Run) -> None:
    """Count the machines of a run, and end its leases when its budget is about to be used up.

    Training stops with a checkpoint, as at the end of a lease's lifetime; a gang that does not end
    by itself is closed a minute later, a pool at once.
    """
    open_leases = [each for each in open_ledger().leases(run_id=run.run_id) if each.state.is_active]
    for lease in open_leases:
        note_machines(lease)
    budget = budget_of(run)
    ahead = None if budget is None else run_cost(run.run_id, time.time() + AHEAD_S)
    if budget is None or ahead is None or ahead.usd < budget:
        return
    why = f"the run has used up its budget of ${budget:.2f} (`limits.budget` of the site)"
    for lease in open_leases:
        _end_in_order(run, lease, why)


def watched(run: Run, tick: Callable[[], None]) -> Callable[[], None]:
    """A tick that also keeps the budget, now and then."""
    due_s = time.monotonic() + _EVERY_S

    def both() -> None:
        nonlocal due_s
        tick()
        if time.monotonic() < due_s:
            return
        try:
            keep(run)
        except LedgerError as error:  # its end is entered all the same, or fails loudly
            logger.warning("What the run costs is not entered now: %s", error.what)
        due_s = time.monotonic() + _EVERY_S

    return both


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
