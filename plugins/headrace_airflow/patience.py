"""Waiting a moment in the task itself: to defer and to be resumed costs more than a short wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

PATIENCE_S = 4.0
"""Longest wait; the time that deferring takes on a busy machine."""

_POLL_S = 0.2


def briefly(
    look: Callable[[], Seen], is_over: Callable[[Seen], bool], patience_s: float = PATIENCE_S
) -> Seen:
    """Look again and again until something is over, for a few seconds at most.

    Args:
        look: Looks.
        is_over: Whether what was seen is worth no more waiting.
        patience_s: Longest wait, seconds.

    Returns:
        What was seen last.
    """
    deadline = time.monotonic() + patience_s
    while True:
        seen = look()
        if is_over(seen) or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_S)
