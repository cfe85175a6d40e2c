"""Machines that cost money, their prices, and the interface that counts and prices them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.recipe.backend import backend_of
from headrace.recipe.site import Role
from headrace.record import Record


class Price(Record):
    """Price of a machine."""

    usd_per_hour: float
    source: str
    """Origin of the price, for users: `site file`, `spot price history`, `AWS price list`."""
    as_of: str = ""
    """Date of the price, `2026-06-17`; empty if unknown."""


class Machine(Record):
    """A machine that a job has, or had; times are seconds since the epoch."""

    machine_id: str
    """Its identifier, as an instance's id."""
    job: str
    kind: str
    market: str
    """How it is paid for, as `spot` and `on-demand`."""
    place: str
    """Its zone."""
    asked_at: float | None = None
    """When it was first requested; null if not recorded."""
    started_at: float
    """When it was available, and began to cost."""
    ended_at: float | None = None
    """When it ended; null while it costs."""
    is_estimate: bool = False
    """Whether it ended at an unknown time before `ended_at`."""


class Meter(Protocol):
    """Counts the machines of a role and returns their prices.

    Methods that ask a service raise BatchError if it does not answer.
    """

    least_billed_s: float
    """Least time that a machine is billed for, seconds."""
    advice: str
    """What users can write where a price is unknown."""

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        """Return the known machines of a lease's job, or of the jobs `<name>-…`."""

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        """Return prices by machine, averaged over its life; unknown ones are absent."""

    def offers(self) -> dict[str, Price | None]:
        """Return the highest price by kind of machine that a job may get; None if unknown."""


def meter_of(role: Role, *, asks_all: bool = False) -> Meter | None:
    """Return what counts and prices a role's machines (`Backend.meter`); None if the site does."""
    found: Meter | None = backend_of(role.backend).meter(role, asks_all=asks_all)
    return found
