"""The page of costs: what machines took, told apart, budgets, and what was foretold."""

from __future__ import annotations

from itertools import starmap
from typing import Literal

from headrace.ledger.ledger import open_ledger
from headrace.ledger.usage_records import UsageSum
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.allowances import Allowance, known_allowances
from headrace.runs.spending import wasted
from headrace.views.foretold import ForetoldRow, foretold_rows

By = Literal["month", "user", "site", "cause", "suite"]

_MOST_ROWS = 500
_HOUR_S = 3600.0


class CostRow(Record):
    """What some attempts took together."""

    name: str
    usd: float
    """US dollars, of what has a known price."""
    hours: float
    """Hours of machines."""
    gpu_hours: float
    attempts: int
    wasted_share: float | None
    """Share of the hours that were idle, or of attempts that did not succeed; null: no hours."""
    unknown: bool
    """Whether the price of something is not known."""


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


class CostPage(Record):
    """Costs, the dearest first; months the newest first."""

    by: By
    as_of: float | None
    """When the oldest figures of machines that are there now were entered; null without any."""
    rows: tuple[CostRow, ...]
    budgets: tuple[BudgetRow, ...]
    foretold: tuple[ForetoldRow, ...]


def cost_page(by: By = "month", sites: Sites = None) -> CostPage:
    """What runs took, on some sites or all; of those that go on, as the reaper has entered it."""
    rows = [_row(each) for each in open_ledger().usage_sums(by, limit=_MOST_ROWS, sites=sites)]
    if by == "month":
        rows.sort(key=lambda row: row.name, reverse=True)
    return CostPage(
        by=by,
        as_of=min(open_ledger().counted_until(sites).values(), default=None),
        rows=tuple(rows),
        budgets=tuple(starmap(_budget, known_allowances(sites))),
        foretold=tuple(foretold_rows(sites)),
    )


def _row(each: UsageSum) -> CostRow:
    return CostRow(
        name=each.name,
        usd=each.usd,
        hours=each.node_s / _HOUR_S,
        gpu_hours=each.gpu_s / _HOUR_S,
        attempts=each.attempts,
        wasted_share=wasted(each),
        unknown=each.unpriced > 0,
    )


def _budget(site: str, each: Allowance) -> BudgetRow:
    return BudgetRow(
        key=each.key,
        site=site,
        whose=each.whose,
        unit=each.measure.unit,
        most=each.most,
        spent=each.taken,
    )
