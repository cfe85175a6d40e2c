"""The ledger's rows of machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

from sqlalchemy import select

from headrace.ledger.database import LedgerPart
from headrace.ledger.records import LeaseRecord, MachineRecord

PRICE = ("usd_per_hour", "price_source", "price_as_of")
"""Columns of a machine's price."""


class MachineRows(LedgerPart):
    """The part of the ledger that knows the machines of leases, and what they cost."""

    def put_machines(self, rows: Iterable[MachineRecord]) -> None:
        """Enter machines, or replace what is known of them: the last writer knows most.

        An end that somebody told stays, with a price that is known by then.

        Raises:
            LedgerError: Their lease is not in the ledger.
        """
        newest = {(row.lease_id, row.machine_id): row for row in rows}
        leases = {lease_id for lease_id, _ in newest}
        query = select(MachineRecord).where(MachineRecord.lease_id.in_(leases))
        with self._database.write("machines") as session:
            known = {(row.lease_id, row.machine_id): row for row in session.scalars(query)}
            changed = [_merged(row, known.get(key)) for key, row in newest.items()]
            self._database.put(session, MachineRecord.__table__, [asdict(row) for row in changed])

    def machines(
        self, *, run_id: str | None = None, lease_id: str | None = None, only_open: bool = False
    ) -> tuple[MachineRecord, ...]:
        """Machines of a run, a lease, or all; only those that still cost; the first ones first."""
        query = select(MachineRecord)
        if run_id is not None:
            query = query.join(LeaseRecord).where(LeaseRecord.run_id == run_id)
        if lease_id is not None:
            query = query.filter_by(lease_id=lease_id)
        if only_open:
            query = query.where(MachineRecord.ended_at.is_(None))
        order = (MachineRecord.started_at, MachineRecord.lease_id, MachineRecord.machine_id)
        with self._database.read() as session:
            return tuple(session.scalars(query.order_by(*order)))


def _merged(row: MachineRecord, known: MachineRecord | None) -> MachineRecord:
    if known is None or known.ended_at is None or known.is_estimate:
        return row
    is_priced = known.usd_per_hour is not None
    return known if is_priced else replace(known, **{name: getattr(row, name) for name in PRICE})
