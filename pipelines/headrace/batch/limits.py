"""How many jobs may be in a queue at once, and what is said when there are as many; pure."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.record import Record


class Limit(Record):
    """A limit on the jobs that are in a queue at once."""

    most: int
    """Most jobs."""
    queued_only: bool = False
    """Whether jobs that wait are counted, and running ones are not."""
    whose: str
    """Who sets it, for users, such as `site`."""

    def __str__(self) -> str:
        return f"{self.whose} limit of {self.most} {'queued ' if self.queued_only else ''}jobs"


def limits_of_site(max_jobs: int | None, max_queued: int | None) -> tuple[Limit, ...]:
    """The limits that a site sets.

    Args:
        max_jobs: Most jobs, waiting and running; None for no limit.
        max_queued: Most jobs that wait; None for no limit.
    """
    given = ((max_jobs, False), (max_queued, True))
    return tuple(
        Limit(most=most, queued_only=queued_only, whose="site")
        for most, queued_only in given
        if most is not None
    )


def first_reached(limits: Iterable[Limit], num_jobs: int, num_queued: int) -> Limit | None:
    """The first limit that leaves no room for another job.

    Args:
        limits: The limits.
        num_jobs: Jobs that wait or run.
        num_queued: Jobs that wait.
    """
    for limit in limits:
        if (num_queued if limit.queued_only else num_jobs) >= limit.most:
            return limit
    return None
