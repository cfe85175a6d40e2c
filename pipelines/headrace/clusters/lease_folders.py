"""The leases of a site by its folder, and the end of those without an owner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles, sure_states
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.local import marked
from headrace.errors import SilentError, StepError, UnknownNameError
from headrace.files.atomic import is_there
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.states import LeaseState

logger = logging.getLogger(__name__)

_GRACE_S = 10.0

Found = TypeVar("Found")


def folders(site: SiteFolder) -> tuple[LeaseFolder, ...]:
    """Return all leases ever started on the site, in order of their ids."""
    if not site.leases.is_dir():
        return ()
    return tuple(LeaseFolder(spec.parent) for spec in sorted(site.leases.glob("*/spec.json")))


def readable(
    known: Iterable[LeaseFolder], read: Callable[[LeaseFolder], Found]
) -> Iterator[tuple[LeaseFolder, Found]]:
    """Yield leases and what is read of them; leases of another release are skipped, logged."""
    for folder in known:
        try:
            yield folder, read(folder)
        except UnknownNameError:  # removed meanwhile
            continue
        except StepError as error:
            logger.warning("Lease %s is passed over: %s", folder.lease_id, error)


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A lease without an owner that has left something."""

    folder: LeaseFolder
    why: str
    num_processes: int
    """Processes of this machine that still carry its mark."""


def leftovers(site: SiteFolder) -> tuple[Leftover, ...]:
    """Return leases that are lost, whose owner has gone, or that left processes at their end."""
    known = folders(site)
    processes = marked(known)
    num_processes = {each: len(processes[str(each.path.resolve())]) for each in known}
    # all but the newest ones of a site have ended, and left nothing
    may_be_left = [each for each in known if num_processes[each] or not is_there(each.closed)]
    found = {each: files.get(LeaseSpec) for each, files in readable(may_be_left, checked)}
    specs = {each: spec for each, spec in found.items() if spec is not None}
    states = sure_states({folder: spec.lost_after_s for folder, spec in specs.items()})
    whys = {each: _why_left(each, specs[each], states[each], num_processes[each]) for each in specs}
    return tuple(
        Leftover(folder=each, why=why, num_processes=num_processes[each])
        for each, why in whys.items() if why
    )  # fmt: skip


def checked(folder: LeaseFolder) -> LeaseFiles:
    """Return a lease whose spec and state can be read; raise StepError if they cannot."""
    files = LeaseFiles.read(folder)
    files.get(LeaseSpec)
    files.state()
    return files


def reap(site: SiteFolder) -> tuple[Leftover, ...]:
    """End all leftovers of a site and return them; one whose batch system is silent stays."""
    return tuple(leftover for leftover in leftovers(site) if _end(leftover))


def _end(leftover: Leftover) -> bool:
    try:
        lease_client.end(leftover.folder, _GRACE_S, leftover.why)
    except SilentError as error:
        name = leftover.folder.lease_id
        logger.warning("Lease %s is looked at again later: %s", name, error.what)
        return False
    return True


def _why_left(folder: LeaseFolder, spec: LeaseSpec, state: LeaseState, num_processes: int) -> str:
    if state is LeaseState.LOST:
        return LeaseFiles.read(folder).why_ended
    if not state.is_active:
        return f"it has ended and left {num_processes} processes" if num_processes else ""
    owner = spec.owner
    if owner is not None and owner.is_here and not owner.is_alive:
        return f"its owner, process {owner.pid} on {owner.host}, has gone"
    return ""
