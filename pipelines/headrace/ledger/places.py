"""Places for leases: a site has so many, and who holds them is in the ledger."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Select, select

from headrace.errors import CapacityError
from headrace.ledger.database import LedgerPart
from headrace.ledger.records import LeaseRecord
from headrace.states import LeaseState

ACTIVE = tuple(state for state in LeaseState if state.is_active)
"""States in which a lease holds a place."""


class Places(LedgerPart):
    """The part of the ledger that gives out places, and lists who has one or had one."""

    def add_lease(self, record: LeaseRecord, max_active: int) -> None:
        """Enter a lease if its site has room; one that is there already stays as it is.

        Counting and entering are one transaction, so that no two callers take the last place.

        Raises:
            CapacityError: The site has that many open.
            LedgerError: The lease's run is not in the ledger.
        """
        with self._database.write(f"leases of {record.site_name}") as session:
            if session.get(LeaseRecord, record.lease_id) is not None:
                return
            taken = tuple(session.scalars(_active(record.site_name)))
            if len(taken) >= max_active:
                raise _full(record.site_name, taken, max_active)
            session.add(record)

    def active_leases(self, site_name: str | None = None) -> tuple[LeaseRecord, ...]:
        """Leases, of one site or of all, that hold or are about to hold machines; oldest first."""
        return self._listed(_active(site_name))

    def ended_leases(
        self, limit: int = 1000, sites: Collection[str] | None = None
    ) -> tuple[LeaseRecord, ...]:
        """At most `limit` leases, of some sites or all, that have ended, the last first."""
        query = select(LeaseRecord).where(LeaseRecord.ended_at.is_not(None)).limit(limit)
        if sites is not None:
            query = query.where(LeaseRecord.site_name.in_(sites))
        return self._listed(
            query.order_by(LeaseRecord.ended_at.desc(), LeaseRecord.lease_id.desc())
        )

    def _listed(self, query: Select[LeaseRecord]) -> tuple[LeaseRecord, ...]:
        with self._database.read() as session:
            return tuple(session.scalars(query))


def _active(site_name: str | None) -> Select[LeaseRecord]:
    query = select(LeaseRecord).where(LeaseRecord.state.in_(ACTIVE))
    named = query if site_name is None else query.filter_by(site_name=site_name)
    return named.order_by(LeaseRecord.created_at, LeaseRecord.lease_id)


def _full(site_name: str, taken: tuple[LeaseRecord, ...], max_active: int) -> CapacityError:
    listed = ", ".join(f"{lease.lease_id} (run {lease.run_id})" for lease in taken[:10])
    return CapacityError(
        f"Site '{site_name}' has {len(taken)} leases open and allows {max_active} "
        f"(limits.max_leases): {listed}",
        "Wait until one ends, close one with `headrace lease close ID`, "
        "or raise limits.max_leases in the site file.",
    )
