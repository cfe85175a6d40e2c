"""The list of runs, and user actions, among them refused ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from pydantic import ConfigDict, Field

from headrace.errors import UserError
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.runs.audit import Actor, refused_requests
from headrace.states import StepState
from headrace.status.run import RunView, run_views

_MOST_ACTS = 200


class ActView(Record):
    """An action that a user requested."""

    model_config = ConfigDict(from_attributes=True)

    at: float = Field(validation_alias="created_at")
    """Seconds since the epoch."""
    user: str
    """Empty if only Airflow's audit log has it."""
    through: str
    run_id: str
    what: str
    details: str
    refused: str
    """Why it was refused; empty if it was not."""


class RunsPage(Record):
    """Runs, the newest first."""

    now: float
    rows: tuple[RunView, ...]
    refused: tuple[ActView, ...] = ()
    """Refused requests in Airflow, no older than the rows."""


def runs_page(
    limit: int = 200,
    states: Sequence[StepState] = (),
    text: str = "",
    sites: Sites = None,
    asker: str = "",
) -> RunsPage:
    """Return the newest runs, those in some states or with a text in their id, recipe or site.

    Runs that failed include the refused requests of a user, or of all users.
    """
    records = open_ledger().runs(limit, states, text, sites=sites)
    since = records[-1].created_at if len(records) == limit else 0.0
    refused: tuple[ActView, ...] = ()
    if not states or StepState.FAILED in states:
        found = _acts(refused_requests(asker, limit, since))
        refused = tuple(act for act in found if text in f"{act.user} {act.details} {act.refused}")
    return RunsPage(now=time.time(), rows=run_views(records), refused=refused)


def acts_of(run_id: str) -> tuple[ActView, ...]:
    """Return the actions on a run, the newest first."""
    return _acts(open_ledger().acts(run_id=run_id, limit=_MOST_ACTS))


def check_refused(owner: str, user: str) -> None:
    """Raise if a request of a DAG run, of one user or of any, was refused.

    Raises:
        UserError: It was refused; the message gives the reason.
    """
    for row in open_ledger().acts(user, owner, limit=1, refused=True):
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row.created_at))
        asked = f"{Actor(row.user or 'a user', row.through)} asked on {when} for: {row.details}"
        raise UserError(row.refused, f"{asked}. No run was made: trigger a new DAG run.")


def _acts(found: Iterable[ActRecord]) -> tuple[ActView, ...]:
    return tuple(map(ActView.model_validate, found))
