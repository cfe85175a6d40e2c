"""Leases in the ledger."""

from __future__ import annotations

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session
from typing_extensions import TypedDict, Unpack

from headrace.errors import CapacityError, UnknownNameError, nearest
from headrace.ledger.records import LeaseRecord
from headrace.ledger.runs import RunRows
from headrace.states import EndedJob, LeaseState

ACTIVE = tuple(state for state in LeaseState if state.is_active)
"""States of leases that hold, or are about to hold, machines."""


class LeaseChanges(TypedDict, total=False):
    """What may change in a lease besides its state; a key left out or None changes nothing."""

    job_ids: tuple[str, ...] | None
    dashboard_url: str | None
    ready_at: float | None
    ended_at: float | None
    why_ended: str | None
    lost_nodes: tuple[EndedJob, ...] | None


class LeaseRows(RunRows):
    """Enter, find and change leases, too."""

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

    def lease(self, lease_id: str) -> LeaseRecord:
        """The lease with this id.

        Raises:
            UnknownNameError: There is none.
        """
        with self._database.read() as session:
            return _known_lease(session, lease_id)

    def latest_lease(self, key: str) -> LeaseRecord | None:
        """The newest lease with this key, in whatever state; None when there is none."""
        with self._database.read() as session:
            return session.scalar(_newest(1).filter_by(key=key))

    def active_leases(self, site_name: str | None = None) -> tuple[LeaseRecord, ...]:
        """Leases, of one site or of all, that hold or are about to hold machines; oldest first."""
        with self._database.read() as session:
            return tuple(session.scalars(_active(site_name)))

    def leases(self, run_id: str | None = None, limit: int = 1000) -> tuple[LeaseRecord, ...]:
        """At most `limit` leases, of one run or of all, newest first."""
        query = _newest(limit) if run_id is None else _newest(limit).filter_by(run_id=run_id)
        with self._database.read() as session:
            return tuple(session.scalars(query))

    def set_lease_state(
        self, lease_id: str, state: LeaseState, **changes: Unpack[LeaseChanges]
    ) -> LeaseRecord:
        """Change a lease, unless it has ended; the lease as it stands then.

        Raises:
            UnknownNameError: There is no such lease.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        change = update(LeaseRecord).filter_by(lease_id=lease_id)
        still_active = change.where(LeaseRecord.state.in_(ACTIVE))
        with self._database.write() as session:
            session.execute(still_active.values(state=state, **values))
            return _known_lease(session, lease_id)


def _newest(limit: int) -> Select[LeaseRecord]:
    query = select(LeaseRecord).limit(limit)
    return query.order_by(LeaseRecord.created_at.desc(), LeaseRecord.lease_id.desc())


def _active(site_name: str | None) -> Select[LeaseRecord]:
    query = select(LeaseRecord).where(LeaseRecord.state.in_(ACTIVE))
    if site_name is not None:
        query = query.filter_by(site_name=site_name)
    return query.order_by(LeaseRecord.created_at, LeaseRecord.lease_id)


def _full(site_name: str, taken: tuple[LeaseRecord, ...], max_active: int) -> CapacityError:
    listed = ", ".join(f"{lease.lease_id} (run {lease.run_id})" for lease in taken[:10])
    return CapacityError(
        f"Site '{site_name}' has {len(taken)} leases open and allows {max_active} "
        f"(limits.max_leases): {listed}",
        "Wait until one ends, close one with `headrace lease close ID`, "
        "or raise limits.max_leases in the site file.",
    )


def _known_lease(session: Session, lease_id: str) -> LeaseRecord:
    found = session.get(LeaseRecord, lease_id)
    if found is None:
        newest = select(LeaseRecord.lease_id).order_by(LeaseRecord.created_at.desc()).limit(10)
        raise UnknownNameError(
            f"There is no lease '{lease_id}' in the ledger",
            nearest(lease_id, session.scalars(newest)),
        )
    return found
