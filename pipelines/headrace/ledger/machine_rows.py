"""The ledger's rows of machines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import select

from headrace.ledger.database import LedgerPart
from headrace.ledger.records import LeaseRecord, MachineRecord


class MachineRows(LedgerPart):
    """The part of the ledger that knows the machines of leases, and what they cost."""

    def put_machines(self, rows: Iterable[MachineRecord]) -> None:
        """Enter machines, or replace what is known of them: the last writer knows most.

        An end that somebody told stays.

        Raises:
            LedgerError: Their lease is not in the ledger.
        """
        with self._database.write("machines") as session:
            for row in rows:
                found = session.get(MachineRecord, (row.lease_id, row.machine_id))
                if found is None:
                    session.add(row)
                elif found.ended_at is None or found.is_estimate:
                    for name, value in asdict(row).items():
                        setattr(found, name, value)

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
