"""Waiting for something by looking again and again, with a deadline and a clear complaint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_SLACK = 2.0
"""Times of tests are for a machine with two free cores; one that is shared has half of that."""


def wait_until(
    predicate: Callable[[], T], timeout_s: float, what: str, *, poll_s: float = 0.05
) -> T:
    """Call `predicate` until it gives something true, and return that.

    Args:
        predicate: Looked at every `poll_s`; its own errors are not caught.
        timeout_s: Seconds to wait, twice at most; be generous, a right program does not use them.
        what: What is waited for, for the message: "the lease to be ready".
        poll_s: Seconds between two looks.

    Raises:
        AssertionError: The time is over; names `what` and the last value seen.
    """
    timeout_s *= _SLACK
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"Waited {timeout_s:g} s for {what}; last seen: {value!r}")
        time.sleep(poll_s)
