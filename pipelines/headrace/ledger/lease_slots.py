"""Slots for leases: a site has a limited number, given out in a fair order; the ledger has them.

Waiting leases ask again and again; no process watches them. A lease that is not first is refused,
and the first ones are marked as called: one that does not ask within a minute has died.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import Select, case, delete, func, select
from sqlalchemy.orm import Session

from headrace.errors import CapacityError, OwnLeasesError
from headrace.ledger.database import LedgerPart
from headrace.ledger.rows import LeaseRecord, MachineRecord, WaitRecord
from headrace.states import DRIVER_ROLE, LeaseState

ACTIVE = tuple(state for state in LeaseState if state.is_active)
"""States in which a lease holds a slot."""

PATIENCE_S = 60.0
"""A lease that was called and has not asked for this time is skipped: its process has died."""

_MOST_SHOWN = 10
_HOUR_S = 3600.0


class Taken(NamedTuple):
    """Machines that leases of a user and role have taken this month (UTC)."""

    owner: str
    role: str
    seconds: float
    """Billed seconds; of a machine from last month the share since its end."""
    usd: float | None
    """US dollars of those with a known price; None if none has one."""


class LeaseSlots(LedgerPart):
    """The part of the ledger that gives out slots, and lists the leases that have or had one."""

    def add_lease(
        self,
        record: LeaseRecord,
        max_active: int,
        max_owner: int | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Enter a lease if its site has a free slot and it is first; an entered one stays.

        Counting and entering are one transaction, so that two callers cannot take the last slot.

        Args:
            record: The lease.
            max_active: Most open leases of the site.
            max_owner: Most open leases of its user; None for no limit.
            waits: Whether the caller will ask again, so that the lease keeps its position.

        Raises:
            OwnLeasesError: Its user has `max_owner` leases open.
            CapacityError: The site has `max_active` leases open, or other waiting leases are first.
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
            is_counted = record.role != DRIVER_ROLE
            refused = _refused(session, wait, max_active, max_owner) if is_counted else None
            if refused is None:
                session.add(record)
                session.execute(delete(WaitRecord).filter_by(key=record.key))
                return
            if waits:
                wait.called_at = None
                session.add(wait)
        raise refused

    def taken_this_month(self, site_name: str) -> tuple[Taken, ...]:
        """Return the machines that each user has taken of a site this month, by role."""
        with self._database.read() as session:
            return _taken(session, site_name)

    def num_before(self, key: str, max_active: int, max_owner: int | None = None) -> int | None:
        """Return how many get a slot before a waiting lease; None while it cannot have one.

        It marks no lease as called. 0 if the lease does not wait.
        """
        with self._database.read() as session:
            wait = session.get(WaitRecord, key)
            if wait is None:
                return 0
            taken = tuple(session.scalars(_counted(wait.site_name)))
            if len(taken) >= max_active or why_own_full(wait.owner, taken, max_owner):
                return None
            return len(_before(session, wait, taken, max_active, max_owner))

    def active_leases(self, site_name: str | None = None) -> tuple[LeaseRecord, ...]:
        """Return leases, of one site or all, that have machines or request them; oldest first."""
        return self._all(_active(site_name))

    def ended_leases(
        self, limit: int = 1000, sites: Collection[str] | None = None
    ) -> tuple[LeaseRecord, ...]:
        """Return at most `limit` ended leases, of some sites or all; the last ended first."""
        query = select(LeaseRecord).where(LeaseRecord.ended_at.is_not(None)).limit(limit)
        if sites is not None:
            query = query.where(LeaseRecord.site_name.in_(sites))
        return self._all(query.order_by(LeaseRecord.ended_at.desc(), LeaseRecord.lease_id.desc()))


def _refused(
    session: Session, wait: WaitRecord, max_active: int, max_owner: int | None
) -> CapacityError | None:
    """Return why a lease gets no slot, or None; mark the leases before it as called."""
    site, owner = wait.site_name, wait.owner
    taken = tuple(session.scalars(_counted(site)))
    if len(taken) >= max_active:
        return _full(site, taken, max_active)
    if why := why_own_full(owner, taken, max_owner):
        return OwnLeasesError(why, "It continues when one of them ends.")
    first = _before(session, wait, taken, max_active, max_owner)
    if not first:
        return None
    for each in first:
        each.called_at = each.called_at or time.time()
    users = ", ".join(dict.fromkeys(each.owner for each in first[:_MOST_SHOWN]))
    return CapacityError(
        f"Other leases that wait for site '{site}' come first, with fewer leases open, less used "
        f"this month, or a longer wait: leases of {users}",
        "Nothing to do: it starts after them.",
    )


def _before(
    session: Session,
    wait: WaitRecord,
    taken: tuple[LeaseRecord, ...],
    max_active: int,
    max_owner: int | None,
) -> list[WaitRecord]:
    """Return the leases that get all free slots before a lease; empty if one is left for it."""
    site, gone = wait.site_name, time.time() - PATIENCE_S
    others = select(WaitRecord).filter_by(site_name=site).where(WaitRecord.key != wait.key)
    there = [
        each for each in session.scalars(others) if each.called_at is None or each.called_at > gone
    ]
    held = Counter(lease.owner for lease in taken)
    taken_s = defaultdict[str, float](float)
    for each in _taken(session, site):
        taken_s[each.owner] += each.seconds
    order = admission_order([wait, *there], held, taken_s, max_owner)
    first = list(takewhile(lambda each: each is not wait, order))
    return first if len(first) >= max_active - len(taken) else []


def admission_order(
    waits: Iterable[WaitRecord],
    held: Mapping[str, int],
    taken_s: Mapping[str, float],
    max_owner: int | None = None,
) -> Iterator[WaitRecord]:
    """Yield leases in the order in which they get the next slots; pure.

    Each slot goes to the user with the fewest open leases; among these to the one who has used
    least this month; then to the longest wait. Users who have reached their limit are left out.

    Args:
        waits: Waiting leases.
        held: Open leases of each user.
        taken_s: Machine time that each user has used, seconds.
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
    """Return why a user gets no further lease of a site besides the open ones; empty if allowed."""
    own = [each for each in taken if each.owner == owner]
    if most is None or len(own) < most:
        return ""
    listed = ", ".join(f"{each.lease_id} (run {each.run_id})" for each in own[:_MOST_SHOWN])
    counted = f"{len(own)} lease{'s' if len(own) > 1 else ''}"
    return (
        f"User {owner} has {counted} open on site '{own[0].site_name}', which allows "
        f"{most} per user (limits.leases_user): {listed}"
    )


def _taken(session: Session, site_name: str) -> tuple[Taken, ...]:
    now, machine = time.gmtime(), MachineRecord
    month = calendar.timegm((now.tm_year, now.tm_mon, 1, 0, 0, 0))
    until = func.coalesce(machine.ended_at, machine.seen_at)
    share = case(
        (machine.started_at >= month, 1.0),
        else_=(until - month) / func.nullif(until - machine.started_at, 0.0),
    )
    seconds = func.sum(machine.billed_s * share)
    usd = func.sum(machine.billed_s * share * machine.usd_per_hour) / _HOUR_S
    query = select(LeaseRecord.owner, LeaseRecord.role, seconds, usd).join(machine)
    query = query.where(LeaseRecord.site_name == site_name, until >= month)
    rows = session.execute(query.group_by(LeaseRecord.owner, LeaseRecord.role))
    return tuple(Taken(*row) for row in rows)


def _active(site_name: str | None) -> Select[LeaseRecord]:
    query = select(LeaseRecord).where(LeaseRecord.state.in_(ACTIVE))
    named = query if site_name is None else query.filter_by(site_name=site_name)
    return named.order_by(LeaseRecord.created_at, LeaseRecord.lease_id)


def _counted(site_name: str) -> Select[LeaseRecord]:
    """Return open leases that take a slot: not those of drivers of suites over several sites."""
    return _active(site_name).where(LeaseRecord.role != DRIVER_ROLE)


def _full(site_name: str, taken: tuple[LeaseRecord, ...], max_active: int) -> CapacityError:
    listed = ", ".join(f"{lease.lease_id} (run {lease.run_id})" for lease in taken[:_MOST_SHOWN])
    return CapacityError(
        f"Site '{site_name}' has {len(taken)} leases open and allows {max_active} "
        f"(limits.max_leases): {listed}",
        "Wait until one ends, close one with `headrace lease close ID`, "
        "or raise limits.max_leases in the site file.",
    )
