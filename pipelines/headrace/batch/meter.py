"""Machines that cost money, and their prices, whoever gives them; who counts and prices them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.record import Record


class Price(Record):
    """What a machine costs."""

    usd_per_hour: float
    source: str
    """Who says so, for the user: `site file`, `spot price history`, `AWS price list`."""
    as_of: str = ""
    """Date of the price, `2026-06-17`; empty when it is not known."""


class Machine(Record):
    """A machine that a job has, or had; times are seconds since the epoch."""

    machine_id: str
    """What it is known by, such as an instance's id."""
    job: str
    kind: str
    market: str
    """How it is paid, such as `spot` and `on-demand`."""
    place: str
    """Where it is: its zone."""
    asked_at: float | None = None
    """When it was first asked for; null when nobody wrote it down."""
    started_at: float
    """When it was there, and began to cost."""
    ended_at: float | None = None
    """When it ended; null while it costs."""
    is_estimate: bool = False
    """Whether it ended at some moment before `ended_at`, and nobody told when."""


class Meter(Protocol):
    """Counts the machines of a role and knows their prices.

    Whatever asks somebody raises BatchError without an answer.
    """

    least_billed_s: float
    """Seconds that a machine is paid for at least."""
    advice: str
    """What to write where a price is not known, for users."""

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        """Machines of a lease's job, or of the jobs `<name>-…`, as far as they are still known."""

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        """Prices by machine, averaged over its life where they change; unknown ones are absent."""

    def offers(self) -> dict[str, Price | None]:
        """The most that each kind of machine costs which a job may get; None: it is not known."""
