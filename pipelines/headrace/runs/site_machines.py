"""Machines without a bill: nodes that the lease's host observed, at the site's price.

A node counts from the start of its job, or on this machine of its lease, until it was released. The
wait in a queue costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from headrace.batch.meter import Machine, Meter, Price, meter_of
from headrace.clusters.lease_files import last_heartbeat
from headrace.clusters.lease_records import Ending, LeaseSpec
from headrace.clusters.node_marks import NodeMarks, NodeSpan, marks_of, spans_of
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder
from headrace.recipe.site import Role
from headrace.record import Record
from headrace.runs.costs import HOUR_S
from headrace.states import LeaseState


def site_price(role: Role) -> Price | None:
    """Return the site's price of a node of a role; None without a price."""
    price = role.price
    if price is None:
        return None
    usd = price.usd_per_hour(role.batch.gpus_per_node, role.cpus_per_node)
    return Price(usd_per_hour=usd, source=price.source, as_of=price.as_of or "")


def site_offers(role: Role) -> dict[str, Price | None]:
    """Return the price of a role's kind of machine, if the site has a price; otherwise nothing."""
    price = site_price(role)
    return {} if price is None else {kind_of(role): price}


def kind_of(role: Role) -> str:
    """Return the name of a role's machines in tables, such as `slurm 4 x a100`."""
    batch = role.batch
    gpus = f"{batch.gpus_per_node} x {batch.gpu_type or 'GPU'}" if batch.gpus_per_node else ""
    return " ".join(filter(None, (role.backend, gpus or batch.partition)))


class SiteMeter:
    """Counts the nodes of a lease by its files; see `Meter`."""

    least_billed_s = 0.0
    advice = "write `price` of the role"

    def __init__(self, folder: LeaseFolder, spec: LeaseSpec) -> None:
        self._folder = folder
        self._spec = spec

    def machines(self, job_name: str) -> tuple[Machine, ...]:
        """Return all present and former nodes of the lease."""
        ending = read_record(self._folder.closed, Ending)
        ended_at = None
        if ending is not None:  # it may be written late; the last heartbeat was not
            ended_at = min(last_heartbeat(self._folder) or ending.at, ending.at)
        is_lost = ending is not None and ending.state is LeaseState.LOST
        kind = kind_of(self._spec.role)
        return tuple(
            _machine(span, job_name, kind, (ended_at, is_lost)) for span in spans_of(self._folder)
        )

    def prices(self, machines: Sequence[Machine]) -> dict[str, Price]:
        """Return the site's price for each machine."""
        price = site_price(self._spec.role)
        return {} if price is None else {each.machine_id: price for each in machines}

    def offers(self) -> dict[str, Price | None]:
        """Return the price of a node."""
        return site_offers(self._spec.role)


def meter_of_lease(folder: LeaseFolder, spec: LeaseSpec, *, asks_all: bool = False) -> Meter:
    """Return the meter of a lease: its provider's if that bills machines, else its files'."""
    return meter_of(spec.role, asks_all=asks_all) or SiteMeter(folder, spec)


def marks_of_lease(folder: LeaseFolder, spec: LeaseSpec) -> dict[str, NodeMarks]:
    """Return the marks of a lease's machines, written by them or by the lease's host."""
    if meter_of(spec.role) is not None:
        return marks_of(folder)
    return {each.machine_id: NodeMarks(joined_at=each.joined_at) for each in spans_of(folder)}


def _machine(
    span: NodeSpan, job_name: str, kind: str, end_of_lease: tuple[float | None, bool]
) -> Machine:
    ended_at, is_lost = end_of_lease
    return Machine(
        machine_id=span.machine_id,
        job=job_name,
        kind=kind,
        market="",
        place=span.host,
        asked_at=span.asked_at,
        started_at=span.started_at,
        ended_at=span.ended_at or (None if ended_at is None else max(ended_at, span.started_at)),
        is_estimate=span.ended_at is None and is_lost,
    )


class MostCost(Record):
    """The highest cost of a lease of a role."""

    usd: float | None
    """US dollars; null if a price is unknown."""
    usd_per_hour: float | None = None
    """US dollars per hour of all its nodes."""
    why: str
    """Its parts, or the unknown price, for the user."""


def most_cost(role: Role) -> MostCost | None:
    """Return the cost of all nodes of the most expensive kind for the lifetime; None if unpriced.

    Raises:
        BatchError: A source of prices does not answer.
    """
    meter = meter_of(role)
    offers = site_offers(role) if meter is None else meter.offers()
    if not offers:
        return None
    known = {name: price for name, price in offers.items() if price is not None}
    if len(known) < len(offers):
        unknown = ", ".join(name for name in offers if name not in known)
        how = "" if meter is None else f": {meter.advice}"
        return MostCost(usd=None, why=f"no price is known of {unknown}{how}")
    name, price = max(known.items(), key=lambda each: each[1].usd_per_hour)
    source = " of ".join(filter(None, (price.source, price.as_of)))
    why = (
        f"{role.nodes} x {timedelta(seconds=role.lifetime_s)} x ${price.usd_per_hour:.6g} an hour "
        f"of {name}, {source}"
    )
    usd_per_hour = role.nodes * price.usd_per_hour
    usd = role.lifetime_s / HOUR_S * usd_per_hour
    return MostCost(usd=usd, usd_per_hour=usd_per_hour, why=why)
