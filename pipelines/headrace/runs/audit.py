"""Who asked for what: one list of the ledger, to which lines are only ever added."""

from __future__ import annotations

import socket
import time
from typing import NamedTuple

from headrace.errors import AccessError, without_secrets
from headrace.ledger.acts import ActRecord
from headrace.ledger.ledger import open_ledger
from headrace.recipe.access import check_user
from headrace.recipe.accounts import account
from headrace.recipe.site import Site

AIRFLOW = "Airflow"
"""Through which somebody asks who has no terminal."""


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
        details=without_secrets(details),
        refused=refused,
    )
    open_ledger().add_act(record)


def check_access(site: Site, by: Actor, what: str, run_id: str = "", details: str = "") -> None:
    """Refuse an act to who may not use a site, and enter that it was.

    Raises:
        AccessError: So it is.
    """
    try:
        check_user(site, by.user)
    except AccessError as error:
        note(by, what, run_id, details, refused=error.what)
        raise
