"""Records the machines of leases in the ledger, by reports of their provider and their own files.

A provider forgets a machine some time after its end. Then the file that the node left counts, or
else its last sign of life.
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
_TIMES = ("booted_at", "prepared_at", "joined_at")
_SHUTDOWN_S = 120.0
"""A machine ends by itself at most this long after its lifetime."""


@dataclass(frozen=True, kw_only=True)
class MachineEvidence:
    """What is known of the machines of a lease at a moment; times are seconds since the epoch."""

    lease_id: str
    asked_at: float | None
    """Time at which all machines were requested; None if each was requested by itself."""
    now: float
    """The moment."""
    last_sign: float
    """Time of the last sign of life of the lease."""
    lifetime_s: float
    """Longest lifetime of a machine."""
    marks: Mapping[str, NodeMarks]
    """Files that the machines wrote."""
    least_s: float = 0.0
    """Least billed seconds of a machine."""

    def marks_of(self, machine: Machine) -> NodeMarks:
        """Return what a machine wrote; empty if it wrote nothing."""
        return self.marks.get(machine.machine_id, NodeMarks())


def record_machines(*leases: LeaseRecord) -> None:
    """Record the machines of leases as they are now.

    If a provider does not answer, its earlier reports stay until the next call.
    """
    for some in at_most(leases):
        known = open_ledger().machines_by_lease([lease.lease_id for lease in some])
        rows = (_counted(lease, known.get(lease.lease_id, ())) for lease in some)
        open_ledger().put_machines(chain.from_iterable(rows))


def _counted(lease: LeaseRecord, known: Sequence[MachineRecord]) -> Sequence[MachineRecord]:
    """Return the rows of a lease that are new or changed."""
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


def price_again(lease: LeaseRecord, role: Role | None, *, anew: bool = False) -> bool:
    """Price the unpriced machines of a lease, or all; return whether any price has changed.

    The prices are those of the role as it is now; with None, as it was. Sources of prices are asked
    also if the role leaves them out.
    """
    folder = LeaseFolder(Path(lease.folder))
    known = open_ledger().machines(lease_id=lease.lease_id)
    rows = [row for row in known if anew or row.usd_per_hour is None]
    spec = read_record(folder.spec, LeaseSpec)
    if not rows or spec is None:
        return False
    spec = spec.model_copy(update={"role": role or spec.role})
    priced = _priced(rows, meter_of_lease(folder, spec, asks_all=True), anew=anew)
    open_ledger().correct_prices(priced)
    return priced != rows


def note_unfinished() -> None:
    """Record the machines of ended leases, if some count as running or none is known."""
    record_machines(*open_ledger().uncounted_leases(since=time.time() - _FORGOTTEN_AFTER_S))


def rows_of(
    evidence: MachineEvidence, known: Sequence[MachineRecord], reported: Sequence[Machine]
) -> list[MachineRecord]:
    """Return the rows of a lease that are new or changed; pure.

    Args:
        evidence: What else is known.
        known: Its rows so far.
        reported: Its machines as the provider reports them.
    """
    before = {row.machine_id: row for row in known}
    present = {each.machine_id for each in reported}
    rows = [_reported(evidence, each, before.get(each.machine_id)) for each in reported]
    gone = (row for row in known if row.machine_id not in present and row.ended_at is None)
    rows += [_forgotten(evidence, _machine(row), row) for row in gone]
    by_themselves = evidence.marks.keys() - present - before.keys()
    rows += [_forgotten(evidence, _by_itself(evidence, each)) for each in sorted(by_themselves)]
    return [row for row in rows if row != before.get(row.machine_id)]


def _reported(
    evidence: MachineEvidence, machine: Machine, before: MachineRecord | None
) -> MachineRecord:
    """Return the row of a machine that its provider reports."""
    marks_end = evidence.marks_of(machine).ended_at
    end: dict[str, Any] = {}
    if machine.is_estimate and marks_end is not None:
        end = {"ended_at": marks_end, "is_estimate": False}
    elif machine.is_estimate and before is not None and before.ended_at is not None:
        end = {"ended_at": before.ended_at}  # the first estimate
    return _row(evidence, machine.model_copy(update=end), before)


def _forgotten(
    evidence: MachineEvidence, machine: Machine, before: MachineRecord | None = None
) -> MachineRecord:
    """Return the row of a machine that its provider does not report: it has ended."""
    marks_end = evidence.marks_of(machine).ended_at
    seen_at = machine.started_at if before is None else before.seen_at
    last_sign = min(max(seen_at, evidence.last_sign), machine.started_at + evidence.lifetime_s)
    end = {
        "ended_at": max(marks_end or last_sign, machine.started_at),
        "is_estimate": machine.is_estimate or marks_end is None,
    }
    return _row(evidence, machine.model_copy(update=end), before)


def _by_itself(evidence: MachineEvidence, machine_id: str) -> Machine:
    """Return a machine that is known only by its own file."""
    marks = evidence.marks[machine_id]
    return Machine(
        machine_id=machine_id,
        job="",
        started_at=marks.booted_at or evidence.asked_at or evidence.last_sign,
        is_estimate=True,
        **marks.model_dump(include={"kind", "market", "place"}),
    )


def _row(
    evidence: MachineEvidence, machine: Machine, before: MachineRecord | None
) -> MachineRecord:
    asked_at = evidence.asked_at or machine.asked_at or machine.started_at
    until = machine.ended_at or evidence.now
    known = {} if before is None else {name: getattr(before, name) for name in (*PRICE, *_TIMES)}
    times = evidence.marks_of(machine).model_dump(include={*_TIMES}, exclude_none=True)
    return MachineRecord(
        lease_id=evidence.lease_id,
        created_at=min(asked_at, machine.started_at),
        seen_at=until,
        billed_s=billed_s(machine.started_at, until, evidence.least_s),
        **machine.model_dump(exclude={"asked_at"}),
        **{**known, **times},
    )


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


def _priced(
    rows: Sequence[MachineRecord], meter: Meter, *, anew: bool = False
) -> list[MachineRecord]:
    """Return the rows with prices; unpriced rows and those that just ended are priced again."""
    asked = [
        _machine(row)
        for row in rows
        if anew or row.usd_per_hour is None or row.ended_at is not None
    ]
    prices = meter.prices(asked) if asked else {}
    return [
        replace(
            row, usd_per_hour=price.usd_per_hour, price_source=price.source, price_as_of=price.as_of
        )
        if (price := prices.get(row.machine_id)) is not None
        else row
        for row in rows
    ]


def _machine(row: MachineRecord) -> Machine:
    names = Machine.model_fields.keys() - {"asked_at"}
    return Machine(asked_at=row.created_at, **{name: getattr(row, name) for name in names})
