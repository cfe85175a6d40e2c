"""Refresh usage and prices in the ledger, and find machines without a price."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import RunRecord
from headrace.ledger.usage_records import UsageSum
from headrace.ledger.usage_rows import at_most
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.runs import machine_records
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import StepState

logger = logging.getLogger(__name__)

_MOST_RUNS = 10_000
_DAY_S = 86_400.0


def refresh_usage(run_id: str | None = None, *, older_than_s: float = 60.0) -> None:
    """Record the usage of a run and its parts until now; None: of running ones with older records.

    Under Airflow the reaper refreshes records before they are that old.
    """
    if run_id is not None:
        _enter(_with_parts(run_id))
        return
    since, entered = time.time() - older_than_s, open_ledger().counted_until()
    going_on = open_ledger().runs(limit=_MOST_RUNS, states=(StepState.RUNNING,))
    for some in at_most(run for run in going_on if entered.get(run.run_id, 0.0) < since):
        _enter(some)


def _with_parts(run_id: str) -> tuple[RunRecord, ...]:
    return (open_ledger().run(run_id), *open_ledger().parts_of(run_id))


def _enter(runs: Sequence[RunRecord]) -> None:
    """Record the usage of runs; those that cannot be read are left out."""
    run_ids = [run.run_id for run in runs]
    leases = chain.from_iterable(open_ledger().leases_of(run_ids).values())
    machine_records.record_machines(*(lease for lease in leases if lease.state.is_active))
    for run in runs:
        try:
            note_trials(RunFolder(Path(run.folder)))
        except HeadraceError as error:
            logger.warning("Trials of suite %s are not recorded now: %s", run.run_id, error.what)
    note_usage(*run_ids)


def price_again(run_id: str | None = None, *, anew: bool = False) -> int:
    """Look up missing prices of machines, of a run or all; return how many leases got some.

    Prices come from the site as it is now, and from AWS; `anew` looks up known prices, too. All
    attempts on the machines then cost as much. Runs that cannot be read are left out.
    """
    ledger, changed = open_ledger(), 0
    runs = ledger.runs(limit=_MOST_RUNS) if run_id is None else _with_parts(run_id)
    for run in runs:
        try:
            machines = ledger.machines(run_id=run.run_id)
            is_known = all(row.usd_per_hour is not None for row in machines)
            roles = {} if is_known and not anew else _roles_now(run)
            for lease in ledger.leases(run_id=run.run_id):
                changed += machine_records.price_again(lease, roles.get(lease.role), anew=anew)
        except HeadraceError as error:
            logger.warning("Prices of run %s are not looked up now: %s", run.run_id, error.what)
    return changed


def _roles_now(run: RunRecord) -> Mapping[str, Role]:
    """Return the roles of a run's site; none if the site is gone."""
    from headrace.runs.runs import open_run  # sums need no recipes

    try:
        return load_site(open_run(run.run_id).request.site).roles
    except HeadraceError as error:
        logger.warning("The site of run %s counts as it was then: %s", run.run_id, error.what)
        return {}


def wasted(total: UsageSum) -> float | None:
    """Return the share of the machines' time that was idle or failed, 0 to 1; None without time."""
    return (total.idle_s + total.failed_s) / total.node_s if total.node_s > 0 else None
