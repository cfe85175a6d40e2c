"""Who asked for what of a run, for its page; and which requests got none, for that of all runs."""

from __future__ import annotations

import time
from collections.abc import Iterable

from headrace.errors import UserError
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.runs.audit import Actor, refused_requests

_MOST = 200


class ActRow(Record):
    """Somebody asked for something."""

    at: float
    """Seconds since the epoch."""
    user: str
    """Empty where only Airflow's audit log tells."""
    through: str
    run_id: str
    what: str
    details: str
    refused: str
    """Why it was not done; empty when it was."""


def act_rows(run_id: str) -> tuple[ActRow, ...]:
    """What was asked of a run, the newest first."""
    return _rows(open_ledger().acts(run_id=run_id, limit=_MOST))


def refused_rows(user: str, limit: int, since: float, text: str) -> tuple[ActRow, ...]:
    """Requests in Airflow that got no run, of a user or of all; those with a text only."""
    found = _rows(refused_requests(user, limit, since))
    return tuple(row for row in found if text in f"{row.user} {row.details} {row.refused}")


def check_refused(owner: str, user: str) -> None:
    """Say why a request of a DAG run, of one user or of any, got no run, if it was refused.

    Raises:
        UserError: So it was.
    """
    for row in open_ledger().acts(user, owner, limit=1, refused=True):
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(row.created_at))
        asked = f"{Actor(row.user or 'somebody', row.through)} asked on {when} for: {row.details}"
        raise UserError(row.refused, f"{asked}. No run was made: trigger a new DAG run.")


def _rows(found: Iterable[ActRecord]) -> tuple[ActRow, ...]:
    names = ("user", "through", "run_id", "what", "details", "refused")
    return tuple(
        ActRow(at=row.created_at, **{name: getattr(row, name) for name in names}) for row in found
    )
