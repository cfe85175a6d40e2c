"""The cost of an hour of an owned cluster, and of a whole project on it; pure.

Purchase and running costs are spread over the hours that are really used, as in Barroso, Hölzle,
Ranganathan, The Datacenter as a Computer, 3rd edition, 2018, chapter 6,
https://doi.org/10.2200/S00874ED3V01Y201809CAC046; interest by the annuity formula. PUE, the energy
of the whole site over that of the machines, is defined by ISO/IEC 30134-2.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from headrace.record import Record

HOURS_PER_YEAR = 8760.0

Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Cluster(Record):
    """An owned cluster; US dollars."""

    purchase_usd: Amount
    """Machines, network, storage, racks, installation."""
    resale_usd: Amount = 0.0
    """Resale value at the end of their life."""
    lifetime_years: Positive
    interest: Amount = 0.0
    """Interest per year on the bound capital: 0.04 is four per cent."""
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs of each node; 0: the price is that of a node hour."""
    watts_per_node: Amount
    """Mean power of a node, its part of network and storage included."""
    pue: float = Field(default=1.5, ge=1)
    """Energy of the site, cooling included, over that of the machines."""
    usd_per_kwh: Amount
    room_usd_per_year: Amount = 0.0
    """Room, cooling plant, insurance, connection."""
    maintenance: Amount = 0.0
    """Contracts and spare parts, a share of the purchase each year."""
    staff: Amount = 0.0
    """Staff in full positions."""
    usd_per_position_year: Amount = 0.0
    """Cost of a full position per year."""
    utilisation: float = Field(gt=0, le=1)
    """Share of the hours in which a GPU, or node, is in use."""


class Project(Record):
    """What a project needs besides hours of the cluster."""

    hours: Amount
    """GPU hours, or node hours without GPUs: of all attempts, as in `headrace cost`."""
    storage_gb_months: Amount = 0.0
    usd_per_gb_month: Amount = 0.0
    transfer_gb: Amount = 0.0
    usd_per_gb: Amount = 0.0
    licences_usd: Amount = 0.0
    staff_hours: Amount = 0.0
    """Of people who set it up, operate and repair it."""
    usd_per_staff_hour: Amount = 0.0


class Ownership(Record):
    """A file of `headrace ownership`."""

    cluster: Cluster
    project: Project | None = None


def costs_per_year(cluster: Cluster) -> dict[str, float]:
    """Return US dollars per year, by purpose."""
    kw = cluster.nodes * cluster.watts_per_node / 1000.0
    return {
        "purchase": _annuity(cluster),
        "power and cooling": kw * cluster.pue * HOURS_PER_YEAR * cluster.usd_per_kwh,
        "room": cluster.room_usd_per_year,
        "maintenance": cluster.maintenance * cluster.purchase_usd,
        "staff": cluster.staff * cluster.usd_per_position_year,
    }


def usd_per_hour(cluster: Cluster) -> float:
    """Return US dollars for an hour of a GPU, or of a node if the nodes have none."""
    count = cluster.nodes * (cluster.gpus_per_node or 1)
    used = count * HOURS_PER_YEAR * cluster.utilisation
    return sum(costs_per_year(cluster).values()) / used


def costs_of_project(project: Project, hourly_usd: float) -> dict[str, float]:
    """Return US dollars of a project, by purpose."""
    return {
        "machines": project.hours * hourly_usd,
        "storage": project.storage_gb_months * project.usd_per_gb_month,
        "transfer": project.transfer_gb * project.usd_per_gb,
        "licences": project.licences_usd,
        "staff": project.staff_hours * project.usd_per_staff_hour,
    }


def _annuity(cluster: Cluster) -> float:
    """Return the yearly payment for the purchase, less the resale at the end."""
    rate, years = cluster.interest, cluster.lifetime_years
    if rate == 0:
        return (cluster.purchase_usd - cluster.resale_usd) / years
    grown = math.pow(1 + rate, years)
    return (cluster.purchase_usd * grown - cluster.resale_usd) * rate / (grown - 1)
