"""headrace's resources in EC2, their leases, and the end of resources without an owner.

The regions and accounts searched are those of the sites and leases of this headrace home.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Literal

from headrace.clusters import lease_client
from headrace.clusters.lease_files import sure_state
from headrace.clusters.lease_records import LeaseSpec, job_name
from headrace.errors import BatchError, HeadraceError, SiteError, StepError, UnknownNameError
from headrace.files.atomic import is_there, read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.recipe.load import available, load_site, site_now
from headrace.recipe.site import Site
from headrace_ec2.api import Ec2Api, Ec2Error, whoami
from headrace_ec2.options import Ec2Options
from headrace_ec2.tagged import LISTINGS, Resource
from headrace_ec2.tagged import end as end_resources

logger = logging.getLogger(__name__)

LeaseLife = Literal["alive", "ended", "unknown"]
"""Whether a lease lives, as far as this machine can tell."""

_Life = tuple[LeaseLife, float | None]
"""That, and its end, seconds since the epoch, if known."""

_JOB = re.compile(r"(headrace-(.+)-[0-9a-f]{8})(?:-\d+)?")
_LEAVES_S = 60.0
"""Time in which instances of an ended lease end themselves."""
_LATE_S = 1800.0
"""A resource is a stray if it is past its end by more than this, for any user. EC2 refuses requests
if clocks differ by more than 15 minutes: that of the tag's writer, and that of its reader."""
_AT_ONCE = 8
_LAST_LEASES = 200
"""Leases whose region is searched too: a site may be named by a path, or its region changed."""


@dataclass(frozen=True, kw_only=True)
class Ec2Regions:
    """Regions and accounts to search, and folders of leases."""

    roles: dict[str, Ec2Options]
    """A role for each region, profile and server, by its name for users."""
    roots: tuple[SiteFolder, ...]
    """Folders of this home's leases."""


def known_regions(site_name: str | None = None) -> Ec2Regions:
    """Return the regions of all known sites and of the last leases, or of one site.

    Raises:
        SiteError: The site cannot be read, or has no role on EC2.
    """
    sites = list(_sites())
    if site_name is None:
        roles = [*_roles(sites), *_of_leases()]
    else:
        chosen = load_site(site_name)
        sites.append(chosen)
        roles = _roles([chosen])
        if not roles:
            hint = "`headrace site list` shows the others; without `--site` all are searched."
            raise SiteError(f"Site {chosen.name} has no role of backend ec2", hint)
    folders = dict.fromkeys(Path(site.folder).expanduser().absolute() for site in sites)
    return Ec2Regions(
        roles={_title(role): role for role in roles}, roots=tuple(map(SiteFolder, folders))
    )


def _sites() -> Iterator[Site]:
    for name in available("sites"):
        try:
            yield site_now(name)
        except SiteError as error:
            logger.warning("Site %s is skipped: %s", name, error.what)


def _roles(sites: list[Site]) -> list[Ec2Options]:
    roles = [role for site in sites for role in site.roles.values()]
    return [role.own_options for role in roles if isinstance(role.own_options, Ec2Options)]


def _of_leases() -> Iterator[Ec2Options]:
    for record in open_ledger().leases(limit=_LAST_LEASES):
        if record.backend == "ec2":
            with suppress(StepError, OSError):  # of another release, or of another user
                spec = read_record(LeaseFolder(Path(record.folder)).spec, LeaseSpec)
                if spec is not None and isinstance(spec.role.own_options, Ec2Options):
                    yield spec.role.own_options


def _title(role: Ec2Options) -> str:
    profile = f" as {role.profile}" if role.profile else ""
    return f"{role.region}{profile}{f' at {role.endpoint_url}' if role.endpoint_url else ''}"


class Stray(Resource):
    """A resource of headrace in EC2, and the life of its lease."""

    place: str
    """Region and account."""
    lease_id: str
    """Its lease; empty if the name of the job does not contain it."""
    lease: LeaseLife
    """Whether the lease lives or has ended; `unknown` if it is not of this home."""
    stray: str
    """Why it has no owner; empty if it may have one."""
    is_own: bool
    """Whether this user has started it, from this machine."""


def find(regions: Ec2Regions) -> tuple[list[Stray], list[str]]:
    """Search all regions at once; return resources, and a line for each that gave no answer."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(_listed, regions.roles.values()))
    life = cache(partial(_life, regions))
    found: dict[str, Stray] = {}  # two profiles may belong to one account
    unreached = []
    for place, (resources, failures) in zip(regions.roles, answers, strict=True):
        unreached += [f"{place}: {why}" for why in failures]
        for each in resources:
            found.setdefault(each.id, _judged(each, place, life))
    return list(found.values()), unreached


def end(regions: Ec2Regions, chosen: Sequence[Stray], tell: Callable[[str], None]) -> bool:
    """End chosen resources; call `tell` with a line for each; return whether all were ended."""
    is_done = True
    for place in dict.fromkeys(each.place for each in chosen):
        here = [each for each in chosen if each.place == place]
        try:
            for each, refusal in end_resources(Ec2Api(regions.roles[place]), here):
                is_done = is_done and not refusal
                of = f" of lease {each.lease_id}" if each.lease_id else ""
                how = f"not ended: {refusal}" if refusal else "ended"
                tell(f"{each.kind} {each.id} ({each.type} in {each.zone}){of}: {how}")
        except BatchError as error:
            is_done = False
            tell(f"{place}: not ended: {error.what}")
    return is_done


def reap() -> list[str]:
    """End all strays; return a line for each, and for each region that could not be searched."""
    regions = known_regions()
    found, unreached = find(regions)
    lines = [f"strays were not searched in {why}" for why in unreached]
    end(regions, [each for each in found if each.stray], lines.append)
    return lines


def why_stray(lease: LeaseLife, ended_s: float | None, late_s: float | None) -> str:
    """Return why a resource has no owner; empty if it may have one; pure.

    Its lease ended `ended_s` ago, None if unknown; by its tag, it should have ended `late_s` ago,
    None without a tag.
    """
    if lease == "ended" and (ended_s is None or ended_s > _LEAVES_S):
        return "its lease has ended"
    if late_s is not None and late_s > _LATE_S:
        return f"it should have ended {late_s / 3600:.1f} h ago"
    return ""


def _listed(role: Ec2Options) -> tuple[list[Resource], list[str]]:
    found: list[Resource] = []
    failures = []
    for listing in LISTINGS:
        try:
            found += listing(Ec2Api(role))
        except Ec2Error as error:  # one right is missing
            failures.append(error.what)
        except BatchError as error:
            return found, [*failures, f"{error.what}. {error.hint}"]
    return found, failures


def _judged(found: Resource, place: str, life: Callable[[str], _Life]) -> Stray:
    name = _JOB.fullmatch(found.job)
    lease, ended_at = life(name[1]) if name else ("unknown", None)
    now = time.time()
    return Stray(
        **dict(found),
        place=place,
        lease_id=name[2] if name else "",
        lease=lease,
        stray=why_stray(lease, _ago(ended_at, now), _ago(found.ends_at, now)),
        is_own=found.owner == whoami(),
    )


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def _life(regions: Ec2Regions, job: str) -> _Life:
    """Return a lease's life and end; its job's name proves that it belongs to a folder here."""
    lease_id = job.removeprefix("headrace-").rpartition("-")[0]
    folders = [root.lease(lease_id) for root in regions.roots]
    record = None
    with suppress(UnknownNameError):
        record = open_ledger().lease(lease_id)
        folders.append(LeaseFolder(Path(record.folder)))
    for folder in folders:
        if job_name(folder) == job:
            return _of_files(folder) or _on_record(record, folder)
    return "unknown", None


def _of_files(folder: LeaseFolder) -> _Life | None:
    """Return a lease's life from its own files; None if there are none."""
    try:
        if not is_there(folder.spec):
            return None
        if sure_state(folder, lease_client.spec(folder).lost_after_s).is_active:
            return "alive", None
        return "ended", folder.closed.stat().st_mtime if is_there(folder.closed) else None
    except (HeadraceError, OSError):  # of another user, damaged, or without an answer of its queue
        return "unknown", None


def _on_record(record: LeaseRecord | None, folder: LeaseFolder) -> _Life:
    if record is None or record.folder != str(folder.path):
        return "unknown", None
    return ("alive", None) if record.state.is_active else ("ended", record.ended_at)
