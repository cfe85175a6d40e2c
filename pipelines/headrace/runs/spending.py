"""What was spent on what: the sums of usage, as of now, and which machines have no price."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import HeadraceError, UserError
from headrace.files.layout import RunFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.records import RunRecord
from headrace.ledger.usage_records import UsageSum
from headrace.runs.counting import note_machines
from headrace.runs.trials import note_trials
from headrace.runs.usage import note_usage
from headrace.states import StepState

logger = logging.getLogger(__name__)

_MOST_RUNS = 1000
_DAY_S = 86_400.0


def bring_up_to_date(run_id: str | None = None) -> None:
    """Enter what a run has taken by now, or all that go on; one that cannot be read is left out."""
    ledger = open_ledger()
    runs = (
        ledger.runs(limit=_MOST_RUNS, state=StepState.RUNNING)
        if run_id is None
        else (ledger.run(run_id),)
    )
    for run in runs:
        try:
            _bring_up_to_date(run)
        except HeadraceError as error:
            logger.warning("What run %s takes is not entered now: %s", run.run_id, error.what)


def _bring_up_to_date(run: RunRecord) -> None:
    for lease in open_ledger().leases(run_id=run.run_id):
        if lease.state.is_active:
            note_machines(lease)
    note_trials(RunFolder(Path(run.folder)))
    note_usage(run.run_id)


def wasted(total: UsageSum) -> float | None:
    """Share of the machines' time that was idle, or of attempts that did not succeed; 0 to 1."""
    return (total.idle_s + total.failed_s) / total.node_s if total.node_s > 0 else None


def unpriced(run_id: str | None, since: str, **only: str) -> Iterator[str]:
    """The roles whose machines have no price, with their sites, for the user."""
    ledger = open_ledger()
    for site in ledger.usage_sums("site", run_id=run_id, since=since, **only):
        if site.unpriced:
            of_site = {**only, "site_name": site.name}
            for role in ledger.usage_sums("role", run_id=run_id, since=since, **of_site):
                if role.unpriced:
                    yield f"{role.name} of {site.name}"


def first_day(since: str) -> str:
    """The day that words such as `2026-11-01`, `2026-11` or `30d` begin with; empty for none.

    Raises:
        UserError: They are neither a date nor a number of days.
    """
    days = re.fullmatch(r"(\d{1,5})d", since)
    if days:
        return time.strftime("%Y-%m-%d", time.gmtime(time.time() - int(days[1]) * _DAY_S))
    if since and not re.fullmatch(r"\d{4}-\d\d(-\d\d)?", since):
        raise UserError(
            f"--since '{since}' is no day", "Write 2026-11-01, 2026-11, or 30d for thirty days."
        )
    return since
