"""Who asked for what: one list of the ledger, to which lines are only ever added."""

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
"""Through which somebody asks who has no terminal."""


START = "start"
"""What is asked of no run yet."""

_MOST_CHARS = 4000
"""Of what was asked: who may trigger a DAG may ask for much."""


class Actor(NamedTuple):
    """Who asks."""

    user: str
    through: str
    """`AIRFLOW`, or the host of a terminal."""

    @classmethod
    def here(cls) -> Actor:
        """The account of this process, in a terminal."""
        return cls(account(), socket.gethostname())

    @classmethod
    def of(cls, owner: str, user: str) -> Actor:
        """Who asks for a run, by its owner and the user that triggered it, if one did."""
        through = AIRFLOW if owner.startswith("airflow:") else socket.gethostname()
        return cls(user or account(), through)

    @property
    def unnamed(self) -> Actor:
        """Who asked for the same through Airflow, whose audit log alone says who that was."""
        return self._replace(user="") if self.through == AIRFLOW else self

    def __str__(self) -> str:
        is_airflow = self.through == AIRFLOW
        return f"{self.user} in Airflow" if is_airflow else f"{self.user}@{self.through}"


def note(by: Actor, what: str, run_id: str = "", details: str = "", refused: str = "") -> None:
    """Enter an act; see `ActRecord`."""
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
    """Enter that what a block does for somebody is refused, and why, where trying again is vain.

    Mistakes in a terminal are told there, and are no acts.

    Args:
        by: Who asks.
        what: As in `ActRecord`.
        about: The run, or the owner of one that is asked for.
        details: As in `ActRecord`.
    """
    try:
        yield
    except HeadraceError as error:
        is_seen = by.through != AIRFLOW and not isinstance(error, AccessError)
        if not is_seen and not error.failure_class.is_retried:
            run_id = "" if about.startswith("cli:") else about
            note(by, what, run_id, details, refused=str(error))
        raise


def refused_requests(user: str = "", limit: int = 100, since: float = 0.0) -> Sequence[ActRecord]:
    """What was asked for in Airflow, of a user or of all, and got no run; the newest first.

    Their `run_id` is the owner that the run would have had.
    """
    found = open_ledger().acts(user, since=since, limit=limit, refused=True)
    return [row for row in found if row.what == START and row.run_id and row.through == AIRFLOW]


def check_access(site: Site, by: Actor, what: str, run_id: str = "", details: str = "") -> None:
    """Refuse an act to who may not use a site, and enter that it was.

    Raises:
        AccessError: So it is.
    """
    with noting_refusals(by, what, run_id, details):
        check_user(site, by.user)
