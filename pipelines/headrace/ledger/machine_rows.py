"""The ledger's rows of machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

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
        with self._database.write("machines") as session:
            for row in rows:
                found = session.get(MachineRecord, (row.lease_id, row.machine_id))
                if found is None:
                    session.add(row)
                    continue
                is_over = found.ended_at is not None and not found.is_estimate
                names = PRICE if is_over else asdict(row).keys()
                if not is_over or found.usd_per_hour is None:
                    for name in names:
                        setattr(found, name, getattr(row, name))

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
