"""Who asked for what of a run, for its page."""

from __future__ import annotations

from headrace.ledger.ledger import open_ledger
from headrace.record import Record

_MOST = 200


class ActRow(Record):
    """Somebody asked for something."""

    at: float
    """Seconds since the epoch."""
    user: str
    """Empty where only Airflow's audit log tells."""
    through: str
    what: str
    details: str
    refused: str
    """Why it was not done; empty when it was."""


def act_rows(run_id: str) -> tuple[ActRow, ...]:
    """What was asked of a run, the newest first."""
    names = ("user", "through", "what", "details", "refused")
    return tuple(
        ActRow(at=row.created_at, **{name: getattr(row, name) for name in names})
        for row in open_ledger().acts(run_id=run_id, limit=_MOST)
    )
