"""Leases in the ledger."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, select, update
from typing_extensions import Unpack

from headrace.errors import CapacityError, UnknownNameError, nearest
from headrace.ledger.records import LeaseChanges, LeaseRecord
from headrace.ledger.rows import Rows, changed, fetch, fetch_first
from headrace.ledger.tables import leases
from headrace.states import LeaseState

ACTIVE = tuple(state.value for state in LeaseState if state.is_active)
"""States of leases that hold, or are about to hold, machines."""


class LeaseRows(Rows):
    """Enter, find and change leases."""

    def add_lease(self, record: LeaseRecord, max_active: int) -> None:
        """Enter a lease if its site has room; one that is there already stays as it is.

        Counting and entering are one transaction, so that no two callers take the last place.

        Args:
            record: The lease.
            max_active: Leases that the site may have open at once.

        Raises:
            CapacityError: The site has that many open.
            LedgerError: The lease's run is not in the ledger.
        """
        with self._database.write() as connection:
            self._database.backend.hold(connection, f"leases of {record.site_name}")
            if _find(connection, record.lease_id) is not None:
                return
            taken = fetch(connection, LeaseRecord, _active(record.site_name))
            if len(taken) >= max_active:
                raise CapacityError(*_full(record.site_name, taken, max_active))
            self._insert(connection, leases, record)

    def lease(self, lease_id: str) -> LeaseRecord:
        """The lease with this id.

        Raises:
            UnknownNameError: There is none.
        """
        with self._database.read() as connection:
            return _lease(connection, lease_id)

    def latest_lease(self, key: str) -> LeaseRecord | None:
        """The newest lease with this key, in whatever state; None when there is none."""
        with self._database.read() as connection:
            query = _newest(select(leases).where(leases.c.key == key))
            return fetch_first(connection, LeaseRecord, query)

    def active_leases(self, site_name: str | None = None) -> tuple[LeaseRecord, ...]:
        """Leases that hold, or are about to hold, machines; oldest first.

        Args:
            site_name: Only those of this site.
        """
        with self._database.read() as connection:
            return fetch(connection, LeaseRecord, _active(site_name))

    def leases(self, run_id: str | None = None, limit: int = 1000) -> tuple[LeaseRecord, ...]:
        """Leases, newest first.

        Args:
            run_id: Only those of this run.
            limit: Most leases to give.
        """
        query = _newest(select(leases)).limit(limit)
        if run_id is not None:
            query = query.where(leases.c.run_id == run_id)
        with self._database.read() as connection:
            return fetch(connection, LeaseRecord, query)

    def set_lease_state(
        self, lease_id: str, state: LeaseState, **changes: Unpack[LeaseChanges]
    ) -> LeaseRecord:
        """Change a lease; one that has ended stays as it is.

        Args:
            lease_id: The lease.
            state: Its new state.
            changes: Further new values.

        Returns:
            The lease as it stands in the ledger.

        Raises:
            UnknownNameError: There is no such lease.
        """
        with self._database.write() as connection:
            values = changed(_lease(connection, lease_id), {**changes, "state": state})
            still_active = update(leases).where(
                leases.c.lease_id == lease_id, leases.c.state.in_(ACTIVE)
            )
            connection.execute(still_active.values(values))
            return _lease(connection, lease_id)


def _newest(query: Select[Any]) -> Select[Any]:
    return query.order_by(leases.c.created_at.desc(), leases.c.lease_id.desc())


def _active(site_name: str | None) -> Select[Any]:
    query = select(leases).where(leases.c.state.in_(ACTIVE))
    if site_name is not None:
        query = query.where(leases.c.site_name == site_name)
    return query.order_by(leases.c.created_at, leases.c.lease_id)


def _full(site_name: str, taken: tuple[LeaseRecord, ...], max_active: int) -> tuple[str, str]:
    listed = ", ".join(f"{lease.lease_id} (run {lease.run_id})" for lease in taken[:10])
    return (
        f"Site '{site_name}' has {len(taken)} leases open and allows {max_active} "
        f"(limits.max_leases): {listed}",
        "Wait until one ends, close one with `headrace lease close ID`, "
        "or raise limits.max_leases in the site file.",
    )


def _find(connection: Connection, lease_id: str) -> LeaseRecord | None:
    query = select(leases).where(leases.c.lease_id == lease_id)
    return fetch_first(connection, LeaseRecord, query)


def _lease(connection: Connection, lease_id: str) -> LeaseRecord:
    found = _find(connection, lease_id)
    if found is None:
        newest = select(leases.c.lease_id).order_by(leases.c.created_at.desc()).limit(10)
        raise UnknownNameError(
            f"There is no lease '{lease_id}' in the ledger",
            nearest(lease_id, connection.scalars(newest)),
        )
    return found
