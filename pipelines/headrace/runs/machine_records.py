"""Enters the machines of leases in the ledger: what their place tells, what they tell themselves.

The place forgets a machine some time after its end. Then the file that the node left counts, and
else the last sign of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.batch.meter import Machine, Meter
from headrace.clusters.lease_records import LeaseSpec, job_name
from headrace.clusters.node_marks import NodeMarks
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.informing import AFTERWARDS_S, inform
from headrace.ledger.ledger import open_ledger
from headrace.ledger.machine_rows import PRICE
from headrace.ledger.rows import LeaseRecord, MachineRecord
from headrace.ledger.usage_rows import at_most
from headrace.recipe.site import Role
from headrace.runs.costs import billed_s
from headrace.runs.site_machines import marks_of_lease, meter_of_lease

_FORGOTTEN_AFTER_S = 3600.0
_SHUTDOWN_S = 120.0
"""A machine ends by itself so long after its lifetime at the latest."""


@dataclass(frozen=True, kw_only=True)
class MachineEvidence:
    """What is known of the machines of a lease at one moment; times are seconds since the epoch."""

    lease_id: str
    asked_at: float | None
    """When all of them were asked for; None where each was by itself."""
    now: float
    """The moment."""
    last_sign: float
    """When something of the lease was last seen to live."""
    lifetime_s: float
    """How long a machine lasts at most."""
    marks: Mapping[str, NodeMarks]
    """What the machines wrote themselves."""
    least_s: float = 0.0
    """Seconds that a machine is paid for at least."""


def record_machines(*leases: LeaseRecord) -> None:
    """Enter the machines of leases as they stand.

    A place that does not answer is asked another time: what it has told so far stays.
    """
    for some in at_most(leases):
        known = open_ledger().machines_by_lease([lease.lease_id for lease in some])
        rows = (_counted(lease, known.get(lease.lease_id, ())) for lease in some)
        open_ledger().put_machines(chain.from_iterable(rows))


def _counted(lease: LeaseRecord, known: Sequence[MachineRecord]) -> Sequence[MachineRecord]:
    """The rows of a lease that are new or change."""
    folder = LeaseFolder(Path(lease.folder))

    def counted() -> list[MachineRecord]:
        spec = read_record(folder.spec, LeaseSpec)
        if spec is None:
            return []
        meter = meter_of_lease(folder, spec)
        evidence = _evidence(folder, spec, lease, meter.least_billed_s)
        return _priced(rows_of(evidence, known, meter.machines(job_name(folder))), meter)

    run, part = SiteFolder(folder.path.parents[1]).run(lease.run_id), f"count of {lease.lease_id}"
    return inform(run, part, counted, list, AFTERWARDS_S) or ()


def price_again(lease: LeaseRecord, role: Role | None) -> bool:
    """Price the machines of a lease that have none, as a role is now; whether that changed any.

    None leaves the role as it was. What has a price keeps it. Who knows prices is asked also where
    the role leaves that out.
    """
    folder = LeaseFolder(Path(lease.folder))
    rows = [row for row in open_ledger().machines(lease_id=lease.lease_id)
            if row.usd_per_hour is None]  # fmt: skip
    spec = read_record(folder.spec, LeaseSpec)
    if not rows or spec is None:
        return False
    spec = spec.model_copy(update={"role": role or spec.role})
    priced = _priced(rows, meter_of_lease(folder, spec, asks_all=True))
    open_ledger().put_machines(priced)
    return priced != rows


def note_unfinished() -> None:
    """Enter the machines of leases that have ended, where some count as there, or none is known."""
    record_machines(*open_ledger().uncounted_leases(since=time.time() - _FORGOTTEN_AFTER_S))


def rows_of(
    evidence: MachineEvidence, known: Sequence[MachineRecord], seen: Sequence[Machine]
) -> list[MachineRecord]:
    """The rows of a lease that are new or change; pure.

    Args:
        evidence: What is known besides.
        known: Its rows so far.
        seen: What the place tells of its machines.
    """
    before = {row.machine_id: row for row in known}
    told = {each.machine_id for each in seen}
    rows = [_seen(evidence, each, before.get(each.machine_id)) for each in seen]
    rows += [_forgotten(evidence, row) for row in known if row.machine_id not in told]
    by_themselves = evidence.marks.keys() - told - before.keys()
    rows += [_forgotten(evidence, _by_itself(evidence, each)) for each in sorted(by_themselves)]
    return [row for row in rows if row != before.get(row.machine_id)]


def _seen(
    evidence: MachineEvidence, machine: Machine, before: MachineRecord | None
) -> MachineRecord:
    """The row of a machine that its place knows."""
    marks = evidence.marks.get(machine.machine_id, NodeMarks())
    ended_at, is_estimate = machine.ended_at, machine.is_estimate
    if is_estimate and marks.ended_at is not None:
        ended_at, is_estimate = marks.ended_at, False
    elif is_estimate and before is not None and before.ended_at is not None:
        ended_at = before.ended_at  # when it was first seen so
    asked_at = evidence.asked_at or machine.asked_at or machine.started_at
    price = {} if before is None else {name: getattr(before, name) for name in PRICE}
    return MachineRecord(
        lease_id=evidence.lease_id,
        machine_id=machine.machine_id,
        job=machine.job,
        kind=machine.kind,
        market=machine.market,
        place=machine.place,
        created_at=min(asked_at, machine.started_at),
        started_at=machine.started_at,
        seen_at=ended_at or evidence.now,
        billed_s=billed_s(machine.started_at, ended_at or evidence.now, evidence.least_s),
        ended_at=ended_at,
        is_estimate=is_estimate,
        **price,
        **_times(marks),
    )


def _forgotten(evidence: MachineEvidence, row: MachineRecord) -> MachineRecord:
    """The row of a machine that its place knows no more: it has ended."""
    if row.ended_at is not None:
        return row
    marks = evidence.marks.get(row.machine_id, NodeMarks())
    last_sign = min(max(row.seen_at, evidence.last_sign), row.started_at + evidence.lifetime_s)
    ended_at = max(marks.ended_at or last_sign, row.started_at)
    return replace(
        row,
        seen_at=ended_at,
        ended_at=ended_at,
        billed_s=billed_s(row.started_at, ended_at, evidence.least_s),
        is_estimate=row.is_estimate or marks.ended_at is None,
        **_times(marks),
    )


def _by_itself(evidence: MachineEvidence, machine_id: str) -> MachineRecord:
    """The row of a machine that only the file which it left tells of."""
    marks = evidence.marks[machine_id]
    started_at = marks.booted_at or evidence.asked_at or evidence.last_sign
    return MachineRecord(
        lease_id=evidence.lease_id,
        machine_id=machine_id,
        job="",
        kind=marks.kind,
        market=marks.market,
        place=marks.place,
        created_at=min(evidence.asked_at or started_at, started_at),
        started_at=started_at,
        seen_at=started_at,
        billed_s=billed_s(started_at, started_at),
        is_estimate=True,
    )


def _times(marks: NodeMarks) -> dict[str, Any]:
    """When a machine came how far, as far as somebody told."""
    times = {"booted_at", "prepared_at", "joined_at"}
    return marks.model_dump(include=times, exclude_none=True)


def _evidence(
    folder: LeaseFolder, spec: LeaseSpec, lease: LeaseRecord, least_s: float
) -> MachineEvidence:
    files = (folder.spec, folder.heartbeat, folder.closed)
    return MachineEvidence(
        lease_id=lease.lease_id,
        asked_at=lease.created_at if spec.role.kind == "gang" else None,
        now=time.time(),
        last_sign=max(file.stat().st_mtime for file in files if file.exists()),
        lifetime_s=spec.role.lifetime_s + _SHUTDOWN_S,
        marks=marks_of_lease(folder, spec),
        least_s=least_s,
    )


def _priced(rows: Sequence[MachineRecord], meter: Meter) -> list[MachineRecord]:
    """The rows with prices: of those that have none, and of those that ended just now, anew."""
    asked = [_machine(row) for row in rows if row.usd_per_hour is None or row.ended_at is not None]
    prices = meter.prices(asked) if asked else {}
    return [
        replace(
            row,
            usd_per_hour=price.usd_per_hour,
            price_source=price.source,
            price_as_of=price.as_of,
        )
        if (price := prices.get(row.machine_id)) is not None
        else row
        for row in rows
    ]


def _machine(row: MachineRecord) -> Machine:
    names = ("machine_id", "job", "kind", "market", "place", "started_at", "ended_at")
    return Machine(**{name: getattr(row, name) for name in names})
