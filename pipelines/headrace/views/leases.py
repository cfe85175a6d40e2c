"""The page of leases: machines that are held, what they wait for and cost an hour."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from headrace.clusters import overview
from headrace.errors import HeadraceError
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord, MachineRecord
from headrace.recipe.teams import Sites
from headrace.record import Record
from headrace.states import LeaseState

logger = logging.getLogger(__name__)

_ENDED = 50


class LeaseRow(Record):
    """A lease; null is what is not known."""

    lease_id: str
    run_id: str
    role: str
    kind: str | None
    """`pool` or `gang`."""
    site: str
    backend: str
    state: LeaseState
    nodes_here: int
    nodes_wanted: int | None
    """Nodes of a gang, most nodes of a pool."""
    steps: int | None
    """Steps submitted to it."""
    running: int | None
    """Steps that have not ended."""
    waits_for: str
    expected_start: float | None = None
    """When it is expected to get the nodes it waits for, seconds since the epoch."""
    created_at: float
    ready_at: float | None
    idle_s: float | None
    """Seconds since the last step ended; null while one runs and when it is not ready."""
    has_dashboard: bool
    """Whether its Dask dashboard is there."""
    usd_per_hour: float | None
    """Of its machines that are there and whose prices are known."""
    why_ended: str
    can_close: bool
    """Whether who asks may close it."""


class LeasesPage(Record):
    """Open leases, the newest first, then those that have ended last."""

    now: float
    rows: tuple[LeaseRow, ...]


def leases_page(*, can_act: bool, sites: Sites = None) -> LeasesPage:
    """The leases of some sites, or of all."""
    ledger = open_ledger()
    active = reversed(ledger.active_leases())
    ended = ledger.ended_leases(_ENDED, sites=sites)
    machines: dict[str, list[MachineRecord]] = {}
    for machine in ledger.machines(only_open=True):
        machines.setdefault(machine.lease_id, []).append(machine)
    rows = [
        _open(row, machines.get(row.lease_id, ()), can_act=can_act)
        for row in active
        if sites is None or row.site_name in sites
    ]
    return LeasesPage(now=time.time(), rows=(*rows, *(_row(row) for row in ended)))


def _open(row: LeaseRecord, machines: Sequence[MachineRecord], *, can_act: bool) -> LeaseRow:
    known = _row(row).model_copy(update={"can_close": can_act})
    try:
        view = overview.view(LeaseFolder(Path(row.folder)))
    except (HeadraceError, OSError) as error:  # its folder is gone or damaged
        return known.model_copy(update={"waits_for": f"It cannot be looked at: {error}"})
    prices = [each.usd_per_hour for each in machines if each.usd_per_hour is not None]
    told = {
        "kind": view.kind,
        "state": view.state,
        "nodes_here": view.nodes_here,
        "nodes_wanted": view.nodes,
        "steps": view.num_steps,
        "running": view.num_running,
        "waits_for": view.waits_for,
        "expected_start": view.expected_start,
        "idle_s": view.idle_s,
        "has_dashboard": bool(view.dashboard_url),
        "usd_per_hour": sum(prices) if prices else None,
        "why_ended": view.why_ended,
    }
    return known.model_copy(update=told)


def _row(row: LeaseRecord) -> LeaseRow:
    return LeaseRow(
        lease_id=row.lease_id,
        run_id=row.run_id,
        role=row.role,
        kind=None,
        site=row.site_name,
        backend=row.backend,
        state=row.state,
        nodes_here=0,
        nodes_wanted=None,
        steps=None,
        running=None,
        waits_for="",
        created_at=row.created_at,
        ready_at=row.ready_at,
        idle_s=None,
        has_dashboard=False,
        usd_per_hour=None,
        why_ended=row.why_ended,
        can_close=False,
    )
