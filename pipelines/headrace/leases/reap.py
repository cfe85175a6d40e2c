"""Ends leases that nobody answers for, and processes that outlived their lease."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.errors import StepError
from headrace.leases import client
from headrace.leases.lease_status import lease_status
from headrace.leases.marks import marked
from headrace.leases.records import LeaseSpec
from headrace.leases.second_look import sure_states
from headrace.states import LeaseState
from headrace.storage.atomic import read_record
from headrace.storage.layout import LeaseFolder, SiteFolder

logger = logging.getLogger(__name__)

_GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A lease of which something is left that nobody answers for."""

    folder: LeaseFolder
    """The lease."""
    why: str
    """What is wrong with it."""
    num_processes: int
    """Processes of this machine that still carry its mark."""


def folders(site: SiteFolder) -> tuple[LeaseFolder, ...]:
    """All leases ever started on the site, in order of their ids."""
    if not site.leases.is_dir():
        return ()
    return tuple(LeaseFolder(spec.parent) for spec in sorted(site.leases.glob("*/spec.json")))


def leftovers(site: SiteFolder) -> tuple[Leftover, ...]:
    """Leases that are lost, whose owner has gone, or that ended and left processes behind.

    One that another release has written and this one cannot read is passed over, with a warning.
    """
    known = folders(site)
    processes = marked(known)
    num_processes = {each: len(processes[str(each.path.resolve())]) for each in known}
    specs = dict(_readable(each for each in known if _may_be_left(each, num_processes[each])))
    states = sure_states({folder: spec.lost_after_s for folder, spec in specs.items()})
    whys = {each: _why_left(each, specs[each], states[each], num_processes[each]) for each in specs}
    return tuple(
        Leftover(folder=folder, why=why, num_processes=num_processes[folder])
        for folder, why in whys.items()
        if why
    )


def _may_be_left(folder: LeaseFolder, num_processes: int) -> bool:
    """All but the newest ones of a site have ended, and left nothing."""
    return num_processes > 0 or not folder.closed.exists()


def _readable(known: Iterable[LeaseFolder]) -> Iterator[tuple[LeaseFolder, LeaseSpec]]:
    for folder in known:
        try:
            spec = read_record(folder.spec, LeaseSpec)
            lease_status(folder)
        except StepError as error:
            logger.warning("Lease %s is passed over: %s", folder.lease_id, error)
            continue
        if spec is not None:  # removed meanwhile
            yield folder, spec


def reap(site: SiteFolder) -> tuple[Leftover, ...]:
    """End all leftovers of a site; safe to call at any time, also twice at once.

    Returns:
        What was ended.
    """
    found = leftovers(site)
    for leftover in found:
        client.end(leftover.folder, _GRACE_S, leftover.why)
    return found


def _why_left(folder: LeaseFolder, spec: LeaseSpec, state: LeaseState, num_processes: int) -> str:
    if state is LeaseState.LOST:
        return client.why_ended(folder)
    if not state.is_active:
        return f"it has ended and left {num_processes} processes" if num_processes else ""
    owner = spec.owner
    if owner is not None and owner.is_here and not owner.is_alive:
        return f"its owner, process {owner.pid} on {owner.host}, has gone"
    return ""
