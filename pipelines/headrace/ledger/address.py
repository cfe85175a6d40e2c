"""Where the ledger is: its URL, and the same without secrets."""

from __future__ import annotations

import os
import re

from sqlalchemy import make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from headrace.errors import LedgerError
from headrace.recipe.load import home

VARIABLE = "HEADRACE_LEDGER"
"""Environment variable that names the ledger."""

_EXAMPLES = (
    f"Set {VARIABLE} to sqlite:////absolute/path/ledger.db or postgresql://user:password@host/name."
)
_SECRET_IN_QUERY = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_SECRET_IN_USER = re.compile(r"(://[^:@/]*|^(?!.*://)[^:@/]*):.*@", re.DOTALL)


def default_url() -> str:
    """`$HEADRACE_LEDGER`, or a SQLite file in headrace's home folder."""
    return os.environ.get(VARIABLE) or f"sqlite:///{home() / 'ledger.db'}"


def masked(url: str) -> str:
    """The URL with `***` in place of passwords; also for URLs that cannot be parsed."""
    return _SECRET_IN_QUERY.sub(r"\1***", _SECRET_IN_USER.sub(r"\1:***@", url))


def parse_url(url: str) -> URL:
    """Parse a URL.

    Raises:
        LedgerError: It is not a URL.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # their messages may quote parts of the password
        raise LedgerError(f"The ledger's URL '{masked(url)}' cannot be read", _EXAMPLES) from None
