"""Places for leases: a site has so many, given out in turn; who holds them is in the ledger.

Nobody watches over those who wait: they ask again and again. One whose turn it is not is kept back,
and that calls those who come first; who does not ask within a minute then has gone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from headrace.errors import CapacityError, OwnLeasesError
from headrace.ledger.database import LedgerPart
from headrace.ledger.rows import LeaseRecord, WaitRecord
from headrace.ledger.usage_records import SUMS
from headrace.states import LeaseState

ACTIVE = tuple(state for state in LeaseState if state.is_active)
"""States in which a lease holds a place."""

PATIENCE_S = 60.0
"""Who has been called for so long, and does not ask, is passed over: a process that has died."""

_MOST_SHOWN = 10


class Places(LedgerPart):
    """The part of the ledger that gives out places, and lists who has one or had one."""

    def add_lease(
        self,
        record: LeaseRecord,
        max_active: int,
        max_owner: int | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Enter a lease if its site has room and it is its turn; one that is there already stays.

        Counting and entering are one transaction, so that no two callers take the last place.

        Args:
            record: The lease.
            max_active: Most leases of the site that are open at once.
            max_owner: The same of its user; None for no limit.
            waits: Whether it is asked for again and again from now on, and so keeps its turn.

        Raises:
            OwnLeasesError: Its user has that many open.
            CapacityError: The site has that many open, or others who wait come first.
            LedgerError: The lease's run is not in the ledger.
        """
        with self._database.write(f"leases of {record.site_name}") as session:
            if session.get(LeaseRecord, record.lease_id) is not None:
                return
            wait = session.get(WaitRecord, record.key) or WaitRecord(
                key=record.key,
                run_id=record.run_id,
                site_name=record.site_name,
                owner=record.owner,
                created_at=time.time(),
            )
            refused = _refused(session, wait, max_active, max_owner)
            if refused is None:
                session.add(record)
                session.execute(delete(WaitRecord).filter_by(key=record.key))
                return
            if waits:
                wait.called_at = None
                session.add(wait)
        raise refused

    def num_before(self, key: str, max_active: int, max_owner: int | None = None) -> int | None:
        """How many others get a place before a lease that waits; None while it cannot have one.

        Nobody is called by that: one of those may have gone. What does not wait has its place.
        """
        with self._database.read() as session:
            wait = session.get(WaitRecord, key)
            if wait is None:
                return 0
            taken = tuple(session.scalars(_active(wait.site_name)))
            if len(taken) >= max_active or why_own_full(wait.owner, taken, max_owner):
                return None
            return len(_before(session, wait, taken, max_active, max_owner))

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


def _refused(
    session: Session, wait: WaitRecord, max_active: int, max_owner: int | None
) -> CapacityError | None:
    """Why a lease does not get a place; those who come before it are called."""
    site, owner = wait.site_name, wait.owner
    taken = tuple(session.scalars(_active(site)))
    if len(taken) >= max_active:
        return _full(site, taken, max_active)
    if why := why_own_full(owner, taken, max_owner):
        return OwnLeasesError(why, "It goes on when one of them ends.")
    first = _before(session, wait, taken, max_active, max_owner)
    if not first:
        return None
    for each in first:
        each.called_at = each.called_at or time.time()
    users = ", ".join(dict.fromkeys(each.owner for each in first[:_MOST_SHOWN]))
    return CapacityError(
        f"Others who wait for site '{site}' come first, with fewer leases open, less taken this "
        f"month, or waiting for longer: leases of {users}",
        "Nothing is to be done: its turn comes.",
    )


def _before(
    session: Session,
    wait: WaitRecord,
    taken: tuple[LeaseRecord, ...],
    max_active: int,
    max_owner: int | None,
) -> list[WaitRecord]:
    """Who gets all that is free before a lease; none where that leaves a place for it."""
    site, gone = wait.site_name, time.time() - PATIENCE_S
    others = select(WaitRecord).filter_by(site_name=site).where(WaitRecord.key != wait.key)
    there = [
        one for one in session.scalars(others) if one.called_at is None or one.called_at > gone
    ]
    held = Counter(lease.owner for lease in taken)
    order = in_turn([wait, *there], held, _taken_s(session, site), max_owner)
    first = list(takewhile(lambda each: each is not wait, order))
    return first if len(first) >= max_active - len(taken) else []


def in_turn(
    waits: Iterable[WaitRecord],
    held: Mapping[str, int],
    taken_s: Mapping[str, float],
    max_owner: int | None = None,
) -> Iterator[WaitRecord]:
    """Leases in the order in which they get the next places; pure.

    Each place goes to the user with fewest open leases, of these to the one who has taken least
    this month, then to what waits longest. Users who have all that they may have are left out.

    Args:
        waits: What waits.
        held: Open leases of each user.
        taken_s: Seconds of machines that each user has taken.
        max_owner: Most open leases of a user; None for no limit.
    """
    left, counts = [*waits], Counter(held)
    while left:
        may = [each for each in left if max_owner is None or counts[each.owner] < max_owner]
        if not may:
            return
        first = min(
            may,
            key=lambda it: (counts[it.owner], taken_s.get(it.owner, 0.0), it.created_at, it.key),
        )
        yield first
        left.remove(first)
        counts[first.owner] += 1


def why_own_full(owner: str, taken: Iterable[LeaseRecord], most: int | None) -> str:
    """Why a user gets no further lease of a site beside those that are open; empty if none."""
    own = [each for each in taken if each.owner == owner]
    if most is None or len(own) < most:
        return ""
    listed = ", ".join(f"{each.lease_id} (run {each.run_id})" for each in own[:_MOST_SHOWN])
    counted = f"{len(own)} lease{'s' if len(own) > 1 else ''}"
    return (
        f"User {owner} has {counted} open on site '{own[0].site_name}', which allows "
        f"{most} to each (limits.leases_user): {listed}"
    )


def _taken_s(session: Session, site_name: str) -> dict[str, float]:
    month = time.strftime("%Y-%m-01", time.gmtime())
    query = select(SUMS.c.owner, func.sum(SUMS.c.node_s)).where(SUMS.c.day >= month)
    rows = session.execute(query.where(SUMS.c.site_name == site_name).group_by(SUMS.c.owner))
    return {owner: float(seconds) for owner, seconds in rows}


def _active(site_name: str | None) -> Select[LeaseRecord]:
    query = select(LeaseRecord).where(LeaseRecord.state.in_(ACTIVE))
    named = query if site_name is None else query.filter_by(site_name=site_name)
    return named.order_by(LeaseRecord.created_at, LeaseRecord.lease_id)


def _full(site_name: str, taken: tuple[LeaseRecord, ...], max_active: int) -> CapacityError:
    listed = ", ".join(f"{lease.lease_id} (run {lease.run_id})" for lease in taken[:_MOST_SHOWN])
    return CapacityError(
        f"Site '{site_name}' has {len(taken)} leases open and allows {max_active} "
        f"(limits.max_leases): {listed}",
        "Wait until one ends, close one with `headrace lease close ID`, "
        "or raise limits.max_leases in the site file.",
    )
