"""Structured events: one JSON object a line, appended in one write."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from headrace.storage.room import is_full

logger = logging.getLogger(__name__)


def append_event(path: Path, name: str, **fields: object) -> None:
    """Append an event with its time; a full disk costs the event, not the step.

    Args:
        path: The events file.
        name: What happened, in snake_case.
        fields: JSON values that describe it.
    """
    line = json.dumps({"at": time.time(), "event": name, **fields}, default=str) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
    except OSError as error:
        if not is_full(error):
            raise
        logger.warning("The event %s is not recorded: %s", name, error)
    finally:
        os.close(handle)
