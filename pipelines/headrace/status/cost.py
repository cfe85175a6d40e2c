"""The page of costs: what machines took, by kind, budgets, and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import MachineRecord
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.costs import BudgetRow, cost_of
from headrace.runs.planning import planner
from headrace.runs.prediction import Prediction
from headrace.runs.refresh_usage import wasted
from headrace.states import StepState
from headrace.status.run import RunRows

By = Literal["month", "user", "site", "cause", "run"]

_LOOKED_AT = 200
_MOST_ROWS = 500
_HOUR_S, _WH_PER_KWH = 3600.0, 1000.0


class CostRow(Record):
    """What some attempts took together."""

    name: str
    usd: float | None
    """US dollars, of everything with a known price; null: no price is known."""
    kwh: float | None
    """Kilowatt-hours of the machines that were measured; null: none was."""
    measured_share: float | None
    """Share of the hours in which energy was measured; null: no hours."""
    hours: float
    """Machine hours."""
    gpu_hours: float
    attempts: int
    wasted_share: float | None
    """Share of the hours that were idle, or of attempts without success; null: no hours."""
    unknown: bool
    """Whether a price is unknown."""


class ForetoldRow(Record):
    """A run that has succeeded and had a prediction at its start; null: unknown."""

    run_id: str
    recipe: str
    site: str
    finished_at: float
    expected_s: float
    expected_half_s: float | None
    """Half of the 80 % interval of the predicted time, in seconds."""
    took_s: float
    expected_usd: float | None
    """Predicted times of its steps, at the run's own cost per second."""
    usd: float | None


class CostPage(Record):
    """Costs, the highest first; months the newest first."""

    by: By
    as_of: float | None
    """When the oldest figures of current machines were entered; null without any."""
    rows: tuple[CostRow, ...]
    budgets: tuple[BudgetRow, ...]
    foretold: tuple[ForetoldRow, ...]


def cost_page(by: By = "month", sites: Sites = None) -> CostPage:
    """Return what runs took, on some sites or all; of open runs, as the reaper has entered it."""
    rows = [
        CostRow(
            name=each.name,
            usd=each.usd,
            kwh=None if each.energy_wh is None else each.energy_wh / _WH_PER_KWH,
            measured_share=each.measured_s / each.node_s if each.node_s > 0 else None,
            hours=each.node_s / _HOUR_S,
            gpu_hours=each.gpu_s / _HOUR_S,
            attempts=each.attempts,
            wasted_share=wasted(each),
            unknown=each.unpriced > 0,
        )
        for each in open_ledger().usage_sums(by, limit=_MOST_ROWS, site_name=sites)
    ]
    if by == "month":
        rows.sort(key=lambda row: row.name, reverse=True)
    return CostPage(
        by=by,
        as_of=min(open_ledger().counted_until(sites).values(), default=None),
        rows=tuple(rows),
        budgets=tuple(planner().budgets(sites)),
        foretold=tuple(foretold_rows(sites)),
    )


def foretold_rows(sites: Sites = None) -> Iterator[ForetoldRow]:
    """Yield a row for each of the newest runs, the newest first."""
    runs = open_ledger().runs(_LOOKED_AT, (StepState.SUCCEEDED,), sites=sites)
    known = {run.run_id: found for run in runs if (found := _prediction(run.folder)) is not None}
    for rows in RunRows.of([run for run in runs if run.run_id in known]):
        yield _foretold(rows, known[rows.run.run_id])


@lru_cache(maxsize=10_000)
def _prediction(folder: str) -> Prediction | None:
    """Return the complete prediction of when the run began, which never changes; None without."""
    try:
        found = read_record(RunFolder(Path(folder)).prediction, Prediction)
    except (StepError, OSError):  # the run's page shows the error
        return None
    return found if found is not None and found.seconds is not None else None


def _foretold(rows: RunRows, prediction: Prediction) -> ForetoldRow:
    run = rows.run
    ended_at = run.finished_at or run.created_at
    priced = [row for row in rows.machines if row.usd_per_hour is not None]
    return ForetoldRow(
        run_id=run.run_id,
        recipe=run.recipe_name,
        site=run.site_name,
        finished_at=ended_at,
        expected_s=prediction.seconds or 0.0,
        expected_half_s=prediction.half_s,
        took_s=ended_at - run.created_at,
        expected_usd=_expected_usd(rows, prediction, priced),
        usd=cost_of(priced, ended_at).usd if priced else None,
    )


def _expected_usd(
    rows: RunRows, prediction: Prediction, machines: Sequence[MachineRecord]
) -> float | None:
    """Return the cost of the predicted seconds of each step, at the cost per second of its role."""
    expected_s = {part.name: part.seconds for part in prediction.parts}
    usd = None
    for role in {lease.role for lease in rows.leases}:
        held = {lease.lease_id for lease in rows.leases if lease.role == role}
        priced = [row for row in machines if row.lease_id in held]
        begun = [row for row in rows.attempts if row.lease_id in held]
        took_s = sum(row.took_s or 0.0 for row in begun)
        if priced and took_s > 0:
            foretold_s = sum(expected_s.get(step, 0.0) for step in {row.step for row in begun})
            usd = (usd or 0.0) + cost_of(priced, 0.0).usd * foretold_s / took_s
    return usd
