"""Tickets: what stands in an address for the login that a page without rights cannot show."""

from __future__ import annotations

import hashlib
from typing import Literal

from fastapi import HTTPException
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

from headrace.record import Record
from headrace_pages.access import secret_key

LASTS_S = 3600
"""Seconds for which a ticket is good."""

_HINT = "Go back to the page of the run or lease, and open it there."


class Ticket(Record):
    """Who may look at what."""

    kind: Literal["dask", "tensorboard"]
    """Whose pages."""
    id: str
    """The lease, or the run."""
    user: str
    """Who was let in."""


def sealed(ticket: Ticket) -> str:
    """A ticket as it stands in an address; good from now on, with every API server's worker."""
    return str(_serializer().dumps(ticket.model_dump()))


def unsealed(text: str) -> Ticket:
    """The ticket that stands in an address.

    Raises:
        HTTPException: 403, it is none, or it is too old.
    """
    try:
        return Ticket.model_validate(_serializer().loads(text, max_age=LASTS_S))
    except SignatureExpired as error:
        what = f"This ticket was good for {LASTS_S // 60} minutes"
        raise HTTPException(403, {"what": what, "hint": _HINT}) from error
    except BadSignature as error:
        raise HTTPException(403, {"what": "This is no ticket", "hint": _HINT}) from error


def _serializer() -> URLSafeTimedSerializer:
    options = {"digest_method": hashlib.sha256}
    return URLSafeTimedSerializer(secret_key(), salt="headrace-ticket", signer_kwargs=options)
