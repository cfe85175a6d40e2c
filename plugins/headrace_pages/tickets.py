"""Tickets: stand in an address for the login that a page without rights cannot show."""

from __future__ import annotations

import hashlib
from typing import Literal

from fastapi import HTTPException
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from headrace.record import Record
from headrace_pages.access import secret_key

LASTS_S = 3600
"""Seconds for which a ticket is valid."""

_HINT = "Go back to the page of the run or lease, and open it there."


class Ticket(Record):
    """A user's right to view certain pages."""

    kind: Literal["dask", "tensorboard"]
    """Kind of the pages."""
    id: str
    """The lease, or the run."""
    user: str
    """The user."""


def sealed(ticket: Ticket) -> str:
    """Return a ticket as it stands in an address; valid from now on, for every server process."""
    return str(_serializer().dumps(ticket.model_dump()))


def unsealed(text: str) -> Ticket:
    """Return the ticket in an address.

    Raises:
        HTTPException: 403 if it is not a ticket, or has expired.
    """
    try:
        return Ticket.model_validate(_serializer().loads(text, max_age=LASTS_S))
    except SignatureExpired as error:
        what = f"This ticket was valid for {LASTS_S // 60} minutes"
        raise HTTPException(403, {"what": what, "hint": _HINT}) from error
    except BadSignature as error:
        raise HTTPException(403, {"what": "This is not a ticket", "hint": _HINT}) from error


def _serializer() -> URLSafeTimedSerializer:
    options = {"digest_method": hashlib.sha256}
    return URLSafeTimedSerializer(secret_key(), salt="headrace-ticket", signer_kwargs=options)
