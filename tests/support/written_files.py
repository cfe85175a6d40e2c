"""What this process writes while something runs, wherever: told by Python's own audit events."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = frozenset(
    (
        *("os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link", "os.symlink"),
        *("os.truncate", "os.utime", "os.chmod", "os.chown", "sqlite3.connect"),
    )
)

_records: list[list[str]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if not _records:
        return
    is_opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
    if (is_opened or event in _EVENTS) and "__pycache__" not in str(arguments[0]):
        for record in _records:
            record.append(f"{event} {arguments[0]}")


sys.addaudithook(_audit)  # there is no way to take one off again


@contextmanager
def recording() -> Iterator[list[str]]:
    """Gives the list of what is written, created, changed or removed meanwhile, by any thread."""
    record: list[str] = []
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)
