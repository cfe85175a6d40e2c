"""Allowances: the money or GPU hours that a run or a month may take, and how much is spent."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from headrace.errors import UserError
from headrace.ledger.lease_slots import Taken
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Role, Site
from headrace.recipe.teams import Sites, known_sites, teams
from headrace.record import Record
from headrace.runs.costs import BudgetRow, billed_s, run_cost
from headrace.runs.site_machines import most_cost

if TYPE_CHECKING:  # the amounts spent need no recipes
    from headrace.runs.runs import Run

logger = logging.getLogger(__name__)

_HOUR_S = 3600.0


class Most(Record):
    """The most that a lease takes until the end of its lifetime."""

    amount: float | None
    """Null if a price is unknown."""
    why: str
    """How it is computed, or which price is unknown, for the user."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A unit of spending."""

    unit: Literal["usd", "gpu_hours"]
    shown: Callable[[float], str]
    """Formats an amount."""
    verbs: tuple[str, str, str]
    """For the sentences: a run has _, may _, _."""
    limit: str
    """The resource that is used up, before its amount."""
    most: Callable[[Role], Most | None]
    """Returns the most that a lease of a role takes; None if that is not limited."""
    of_run: Callable[[Run, float], float]
    """Returns what a run will have taken in so many seconds, if its leases continue."""
    of_users: Callable[[Site], Mapping[str, float]]
    """Returns what each user has taken of a site this month (UTC)."""


def _most_usd(role: Role) -> Most | None:
    most = most_cost(role)
    return None if most is None else Most(amount=most.usd, why=most.why)


def usd_of_run(run_id: str, ahead_s: float, *, whole: bool) -> float:
    """Return US dollars of a run in so many seconds, `whole` with those of its parts."""
    cost = run_cost(run_id, time.time() + ahead_s, whole=whole)
    return 0.0 if cost is None else cost.usd


def _of_users(site: Site, amount: Callable[[Taken], float]) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for each in open_ledger().taken_this_month(site.name):
        found[each.owner] += amount(each)
    return found


def _most_gpu_hours(role: Role) -> Most | None:
    gpus = role.batch.gpus_per_node
    amount = role.nodes * gpus * role.lifetime_s / _HOUR_S
    return Most(amount=amount, why=f"{role.nodes} x {gpus} GPUs") if gpus else None


def _gpu_hours_of_run(run: Run, ahead_s: float) -> float:
    roles, until = run.site_now.roles, time.time() + ahead_s
    of_leases = {each.lease_id: each.role for each in open_ledger().leases(run_id=run.run_id)}
    held_s = 0.0
    for machine in open_ledger().machines(run_id=run.run_id):
        role = roles.get(of_leases[machine.lease_id])
        is_over = machine.ended_at is not None
        taken_s = machine.billed_s if is_over else billed_s(machine.started_at, until, 0.0)
        held_s += taken_s * (role.batch.gpus_per_node if role else 0)
    return held_s / _HOUR_S


def _gpu_hours_of_users(site: Site) -> dict[str, float]:
    """Return GPU hours by user: of all held GPUs, busy or not, by the roles' GPUs per node."""
    gpus = {name: role.batch.gpus_per_node for name, role in site.roles.items()}
    return _of_users(site, lambda taken: taken.seconds / _HOUR_S * gpus.get(taken.role, 0))


USD = Measure(
    unit="usd",
    shown="${:.2f}".format,
    verbs=("cost", "cost", "costs"),
    limit="budget of ",
    most=_most_usd,
    of_run=lambda run, ahead_s: usd_of_run(run.run_id, ahead_s, whole=False),
    of_users=partial(_of_users, amount=lambda taken: taken.usd or 0.0),
)
"""US dollars of machines."""

GPU_HOURS = Measure(
    unit="gpu_hours",
    shown="{:.2f} GPU hours".format,
    verbs=("taken", "take", "takes"),
    limit="",
    most=_most_gpu_hours,
    of_run=_gpu_hours_of_run,
    of_users=_gpu_hours_of_users,
)
"""Hours of GPUs."""


MEASURES = {each.unit: each for each in (USD, GPU_HOURS)}
"""Measures by unit."""

_MONTHLY = (
    ("budget_month", "site", USD),
    ("budget_user", "user", USD),
    ("budget_team", "team", USD),
    ("gpu_hours_user", "user", GPU_HOURS),
    ("gpu_hours_team", "team", GPU_HOURS),
)


def allowances(site: Site, user: str | None = None) -> Iterator[BudgetRow]:
    """Yield the monthly budgets of a site: for all users, or for a user and the user's teams.

    Raises:
        UserError: Teams count, and their file is unusable.
    """
    for key, of, measure in _MONTHLY:
        if (most := getattr(site.limits, key)) is None:
            continue
        taken = measure.of_users(site)
        users = taken.keys() if user is None else taken.keys() | {user}
        for name, members in _groups(of, users).items():
            if user is None or user in members:
                yield BudgetRow(
                    key=f"limits.{key}",
                    site=site.name,
                    whose=name,
                    unit=measure.unit,
                    most=most,
                    spent=sum(taken.get(each, 0.0) for each in members),
                )


def known_allowances(sites: Sites = None) -> Iterator[BudgetRow]:
    """Yield the monthly budgets of known sites, some or all."""
    for site in known_sites().values():
        try:
            yield from allowances(site) if sites is None or site.name in sites else ()
        except UserError as error:
            logger.warning("The budgets of site %s are not shown: %s", site.name, error)


def _groups(of: str, users: Collection[str]) -> Mapping[str, Collection[str]]:
    if of == "site":
        return {"": users}
    return teams() if of == "team" else {name: (name,) for name in users}
