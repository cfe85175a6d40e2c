"""Structured events: one JSON object a line, appended in one write."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def append_event(path: Path, name: str, **fields: object) -> None:
    """Append an event with its time.

    Args:
        path: The events file.
        name: What happened, in snake_case.
        fields: JSON values that describe it.
    """
    line = json.dumps({"at": time.time(), "event": name, **fields}, default=str) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)
