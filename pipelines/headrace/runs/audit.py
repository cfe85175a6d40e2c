"""The audit: an append-only list of requests in the ledger."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from headrace.errors import AccessError, HeadraceError, without_secrets
from headrace.ledger.audit_rows import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.recipe.site import Site
from headrace.recipe.teams import check_user
from headrace.recipe.unix_accounts import account

AIRFLOW = "Airflow"
"""The door of requesters without a terminal."""


START = "start"
"""The act that starts a run."""

_MOST_CHARS = 4000
"""Longest details of an act: requests from Airflow may be long."""


class Actor(NamedTuple):
    """A requester."""

    user: str
    through: str
    """`AIRFLOW`, or the host of a terminal."""

    @classmethod
    def here(cls) -> Actor:
        """Return the account of this process, at a terminal."""
        return cls(account(), socket.gethostname())

    @classmethod
    def of(cls, owner: str, user: str) -> Actor:
        """Return the requester of a run by its owner and the user that triggered it, if any."""
        through = AIRFLOW if owner.startswith("airflow:") else socket.gethostname()
        return cls(user or account(), through)

    @property
    def unnamed(self) -> Actor:
        """A requester through Airflow without a name, which only Airflow's audit log knows."""
        return self._replace(user="") if self.through == AIRFLOW else self

    def __str__(self) -> str:
        is_airflow = self.through == AIRFLOW
        return f"{self.user} in Airflow" if is_airflow else f"{self.user}@{self.through}"


def note(by: Actor, what: str, run_id: str = "", details: str = "", refused: str = "") -> None:
    """Record an act; see `ActRecord`."""
    record = ActRecord(
        created_at=time.time(),
        user=by.user,
        through=by.through,
        what=what,
        run_id=run_id,
        details=without_secrets(details)[:_MOST_CHARS],
        refused=refused[:_MOST_CHARS],
    )
    open_ledger().add_act(record)


@contextmanager
def noting_refusals(by: Actor, what: str, about: str, details: str) -> Iterator[None]:
    """Record a refusal of an act that the block does, unless a retry may succeed.

    Mistakes at a terminal are shown there and not recorded.

    Args:
        by: The requester.
        what: As in `ActRecord`.
        about: The run, or the owner of a requested run.
        details: As in `ActRecord`.
    """
    try:
        yield
    except HeadraceError as error:
        is_shown = by.through != AIRFLOW and not isinstance(error, AccessError)
        if not is_shown and not error.failure_class.is_retried:
            run_id = "" if about.startswith("cli:") else about
            note(by, what, run_id, details, refused=str(error))
        raise


def refused_requests(user: str = "", limit: int = 100, since: float = 0.0) -> Sequence[ActRecord]:
    """Return refused requests from Airflow, of a user or of all, the newest first.

    Their `run_id` is the owner that the run would have had.
    """
    found = open_ledger().acts(user, since=since, limit=limit, refused=True)
    return [row for row in found if row.what == START and row.run_id and row.through == AIRFLOW]


def check_access(site: Site, by: Actor, what: str, run_id: str = "", details: str = "") -> None:
    """Refuse an act of a requester who may not use a site, and record the refusal.

    Raises:
        AccessError: The requester may not use the site.
    """
    with noting_refusals(by, what, run_id, details):
        check_user(site, by.user)
