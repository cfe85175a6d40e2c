"""The ledger's rows of machines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from sqlalchemy import exists, func, select, update

from headrace.ledger.database import LedgerPart, given, grouped
from headrace.ledger.lease_slots import ACTIVE
from headrace.ledger.rows import LeaseRecord, MachineRecord

PRICE = ("usd_per_hour", "price_source", "price_as_of")
"""Columns of a machine's price."""


class MachineRows(LedgerPart):
    """The part of the ledger with the machines of leases, and their cost."""

    def put_machines(self, rows: Iterable[MachineRecord]) -> None:
        """Enter machines, or replace what is known of them: the last writer knows most.

        A reported end stays, but a missing price is added.

        Raises:
            LedgerError: Their lease is not in the ledger.
        """
        newest = {(row.lease_id, row.machine_id): row for row in rows}
        if not newest:
            return
        leases = {lease_id for lease_id, _ in newest}
        query = select(MachineRecord).where(MachineRecord.lease_id.in_(leases))
        with self._database.write("machines") as session:
            known = {(row.lease_id, row.machine_id): row for row in session.scalars(query)}
            changed = [_merged(row, known.get(key)) for key, row in newest.items()]
            self._database.put(session, MachineRecord.__table__, [asdict(row) for row in changed])

    def correct_prices(self, rows: Iterable[MachineRecord]) -> None:
        """Replace the prices of machines, ended ones included: their attempts cost as much now."""
        with self._database.write("machines") as session:
            for row in rows:
                change = update(MachineRecord).filter_by(
                    lease_id=row.lease_id, machine_id=row.machine_id
                )
                session.execute(change.values({name: getattr(row, name) for name in PRICE}))

    def machines(
        self, *, run_id: str | None = None, lease_id: str | None = None, only_open: bool = False
    ) -> tuple[MachineRecord, ...]:
        """Return machines of a run, a lease, or all; `only_open`: those that cost; oldest first."""
        query = select(MachineRecord).filter_by(**given(lease_id=lease_id))
        if run_id is not None:
            query = query.join(LeaseRecord).where(LeaseRecord.run_id == run_id)
        if only_open:
            query = query.where(MachineRecord.ended_at.is_(None))
        order = (MachineRecord.started_at, MachineRecord.lease_id, MachineRecord.machine_id)
        return self._all(query.order_by(*order))

    def machines_by_lease(
        self, lease_ids: Collection[str]
    ) -> Mapping[str, Sequence[MachineRecord]]:
        """Return machines by lease, oldest first; a lease without known machines is absent."""
        query = select(MachineRecord).where(MachineRecord.lease_id.in_(lease_ids))
        order = (MachineRecord.started_at, MachineRecord.machine_id)
        return grouped((row.lease_id, row) for row in self._all(query.order_by(*order)))

    def counted_until(self, sites: Collection[str] | None = None) -> Mapping[str, float]:
        """Return by run when its open machines were last entered, of some sites or all."""
        query = select(LeaseRecord.run_id, func.min(MachineRecord.seen_at)).join(LeaseRecord)
        query = query.where(MachineRecord.ended_at.is_(None)).group_by(LeaseRecord.run_id)
        if sites is not None:
            query = query.where(LeaseRecord.site_name.in_(sites))
        with self._database.read() as session:
            return dict(session.execute(query).all())

    def uncounted_leases(self, since: float) -> tuple[LeaseRecord, ...]:
        """Return ended leases with open machines, or that ended since then without any machine."""
        still_there = select(MachineRecord.lease_id).where(MachineRecord.ended_at.is_(None))
        is_open = LeaseRecord.lease_id.in_(still_there)
        is_known = exists().where(MachineRecord.lease_id == LeaseRecord.lease_id)
        is_new = (LeaseRecord.ended_at >= since) & ~is_known
        query = select(LeaseRecord).where(LeaseRecord.state.not_in(ACTIVE), is_open | is_new)
        return self._all(query.order_by(LeaseRecord.lease_id))


def _merged(row: MachineRecord, known: MachineRecord | None) -> MachineRecord:
    if known is None or known.ended_at is None or known.is_estimate:
        return row
    is_priced = known.usd_per_hour is not None
    return known if is_priced else replace(known, **{name: getattr(row, name) for name in PRICE})
