"""What a batch system tells of one of its queues, in terms that PBS, Grid Engine and LSF share."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.record import Record


class QueueFacts(Record):
    """What a batch system tells of one of its queues."""

    name: str
    """Name of the queue."""
    refuses: str = ""
    """Why it takes no jobs, in the batch system's words; empty when it takes some."""
    holds: str = ""
    """Why jobs wait in it for now; empty when they do not."""
    limit_s: float | None = None
    """Longest time of a job, seconds; null for no limit, or one that is not told."""
    most_cpus: int | None = None
    """Most CPUs of a job; null for no limit, or one that is not told."""
    least_nodes: int = 1
    """Fewest nodes of a job."""
    most_nodes: int | None = None
    """Most nodes of a job; null for no limit, or one that is not told."""


def longest_s(limits_s: Iterable[float | None]) -> float | None:
    """Longest time of a job that may go to any of some queues, seconds.

    Args:
        limits_s: Their limits; None for one without.

    Returns:
        None where a queue has no limit, or there is no queue.
    """
    longest = 0.0
    for limit_s in limits_s:
        if limit_s is None:
            return None
        longest = max(longest, limit_s)
    return longest or None


def clock_s(text: str) -> float:
    """Seconds of a time such as `48:00:00`, `30:00` or `3600`.

    Args:
        text: Hours, minutes and seconds; fewer parts are the last ones.
    """
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds
