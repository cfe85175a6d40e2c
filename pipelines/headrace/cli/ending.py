"""How long commands end when somebody terminates them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tidy_end() -> Iterator[None]:
    """Let SIGTERM interrupt as Ctrl-C does, so that what was written or started is removed."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
