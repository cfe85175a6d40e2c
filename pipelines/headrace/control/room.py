"""Who holds the leases of a site that has no more to give, and how one comes free."""

from __future__ import annotations

import shlex
import time

from headrace.control.ledgers import open_ledger
from headrace.control.owners import owner_is_gone, owner_process
from headrace.control.runs import Run
from headrace.ledger.records import LeaseRecord, RunRecord

_MOST_SHOWN = 8


def why_no_room(run: Run) -> str:
    """Why a run gets no further lease: who holds those of its site since when, and how to free one.

    Args:
        run: The run.

    Returns:
        A line, and one for each lease that is open; empty when there is room.
    """
    taken, most = open_ledger().active_leases(run.site.name), run.site.limits.max_leases
    if len(taken) < most:
        return ""
    held = [_held(each, open_ledger().run(each.run_id), run) for each in taken[:_MOST_SHOWN]]
    first = (
        f"Site '{run.site.name}' has {len(taken)} leases open and allows {most} "
        "(limits.max_leases). They are held by"
    )
    return "\n  ".join([f"{first}:", *held])


def _held(lease: LeaseRecord, holder: RunRecord, asking: Run) -> str:
    since = time.strftime("%a %d %b %H:%M", time.localtime(lease.created_at))
    return (
        f"run {holder.run_id}, role {lease.role}, lease {lease.lease_id}, since {since}, "
        f"by {_owner(holder.owner)}; to free it: {_way(lease, holder, asking)}"
    )


def _owner(owner: str) -> str:
    process = owner_process(owner)
    if process is None:
        return owner
    gone = ", which has ended" if owner_is_gone(owner) else ""
    return f"process {process.pid} on {process.host}{gone}"


def _way(lease: LeaseRecord, holder: RunRecord, asking: Run) -> str:
    """A living run would open its lease anew, so that itself must be asked to stop."""
    if owner_is_gone(holder.owner):
        return f"headrace lease close {lease.lease_id} --site {shlex.quote(asking.request.site)}"
    return f"headrace cancel {lease.run_id}"
