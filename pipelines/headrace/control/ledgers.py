"""The ledger that this process keeps, opened once."""

from __future__ import annotations

import os
from functools import lru_cache

from headrace.ledger.database import default_url
from headrace.ledger.ledger import Ledger


def open_ledger() -> Ledger:
    """The ledger named by `$HEADRACE_LEDGER`, by default a SQLite file in headrace's home."""
    return _open(default_url(), os.getpid())


@lru_cache(maxsize=4)
def _open(url: str, _pid: int) -> Ledger:
    return Ledger.open(url)
